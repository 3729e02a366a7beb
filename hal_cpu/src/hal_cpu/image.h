/* The binary interface between the CPU runtime and a kernel image.
 *
 * An image is a shared object that exports, for each kernel NAME, one constant
 *
 *     const struct hal_kernel hal_kernel_NAME
 *
 * with C linkage and default visibility. `device.compile` writes it for you; an
 * image built elsewhere, in C, C++ or anything that can lay out these structs,
 * includes this header and writes it by hand (docs/kernels.md shows how).
 * Neither side needs to link against the other: all that a kernel may call of
 * the runtime comes as function pointers in `struct hal_worker`. */
#ifndef HAL_CPU_IMAGE_H
#define HAL_CPU_IMAGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Counts incompatible changes of this file; an image of another number is refused. */
#define HAL_IMAGE_ABI 2

/* The kernel writes to C's standard output, to be flushed when a launch ends. */
#define HAL_KERNEL_PRINTS 1u

/* Bytes of packed arguments that a launch takes at most. */
#define HAL_MAX_ARGUMENT_BYTES 32768u

/* One launch. The same for all its blocks; alive until the last has returned. */
struct hal_launch {
  unsigned int grid[3];       /* blocks in x, y and z */
  unsigned int block[3];      /* threads of a block in x, y and z */
  unsigned int shared_memory; /* bytes of dynamic shared memory */
  unsigned int reserved;
  const void *arguments;      /* packed as hal_kernel.offsets says, aligned to 64 */
};

/* Where a barrier stands in the source. */
struct hal_place {
  const char *file;
  unsigned int line;
};

/* What threads of one warp do together, as one of them describes it. */
struct hal_meeting {
  const struct hal_place *place;
  const char *name;         /* of the function in the source */
  unsigned int width;       /* threads of a warp: 32 or 64 */
  unsigned int open;        /* 1: for those that happen to come to this place */
  unsigned long long lanes; /* otherwise those that come, a bit for each */
  /* Called once, when all have come that have not returned, with each one's argument by its lane. */
  void (*together)(unsigned long long lanes, void *const *arguments);
  void *argument;
};

/* The operating system's thread that runs blocks; it runs one block at a time. */
struct hal_worker {
  void *shared; /* the block's dynamic shared memory, aligned to 64; contents undefined */
  unsigned long long block; /* to be written before a block whose threads meet at barriers */
  /* Calls entry(frame, i) for each i < count, each on a stack of its own, and
   * returns when all have returned. i rises in the order of the first calls. */
  void (*run_threads)(struct hal_worker *worker, unsigned int count,
                      void (*entry)(void *frame, unsigned int i), void *frame);
  /* To be called inside such an entry: returns once every entry that has not
   * returned has called it too, with the same place. If one calls it with
   * another place the block is given up, and the launch fails. */
  void (*barrier)(struct hal_worker *worker, const struct hal_place *place);
  /* Makes the launch fail because the block's threads did not all go to the
   * barrier at `one`: some went to `other`, or past it if that is NULL. The
   * caller gives the block up. */
  void (*diverged)(struct hal_worker *worker, const struct hal_place *one, const struct hal_place *other);
  /* To be called inside such an entry: returns once all lanes of the meeting
   * have called it for the same one, and `together` was called. If they cannot
   * all come the block is given up, and the launch fails. */
  void (*meet)(struct hal_worker *worker, const struct hal_meeting *meeting);
  /* Makes the launch fail because lanes of a meeting, a bit for each, do not come:
   * they wait at another one, or at a barrier if that is NULL. The caller gives the
   * block up. */
  void (*missed)(struct hal_worker *worker, const struct hal_meeting *meeting, unsigned long long lanes,
                 const struct hal_meeting *other);
};

struct hal_kernel {
  unsigned int abi;   /* HAL_IMAGE_ABI */
  unsigned int flags; /* HAL_KERNEL_PRINTS */
  const char *name;
  /* Runs the blocks first <= i < last, where block i has the index
   * x = i % grid[0], y = i / grid[0] % grid[1], z = i / grid[0] / grid[1].
   * Called on several threads at once with ranges that do not overlap. */
  void (*run)(const struct hal_launch *launch, struct hal_worker *worker,
              unsigned long long first, unsigned long long last);
  unsigned int max_threads;          /* threads of a block, at most */
  unsigned int static_shared_memory; /* bytes that the kernel declares itself, or 0 */
  unsigned int argument_bytes;       /* of all packed arguments */
  unsigned int parameter_count;
  const unsigned int *sizes;   /* bytes of each parameter */
  const unsigned int *offsets; /* of each parameter in hal_launch.arguments */
};

#ifdef __cplusplus
}
#endif
#endif
