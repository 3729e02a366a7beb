/* What the engine asks of kernel images: modules, functions, globals, and running a kernel.
 *
 * The engine owns streams, memory, graphs and faults, and knows nothing of what an image looks
 * like. Whoever implements this header knows nothing of streams. All functions may be called on
 * any thread; the engine holds none of its locks meanwhile. */
#ifndef GPUSIM_IMAGE_H
#define GPUSIM_IMAGE_H

#include <stddef.h>
#include <stdint.h>

struct sim_module;
struct sim_function;

/* Loads an image, whose size its own header tells. Returns NULL when `bytes` is no image that can run
 * here, with `*status` set to
 *   SIM_IMAGE_FOREIGN  a well-formed image for another target (a cubin, PTX, a code object), or
 *   SIM_IMAGE_INVALID  nothing of the kind, or damaged,
 * and a line that says why in `why` (room for `why_size` bytes, 0 allowed). The bytes are not
 * needed any more after the call. Every load gives a module with globals of its own. */
enum { SIM_IMAGE_OK = 0, SIM_IMAGE_FOREIGN = 1, SIM_IMAGE_INVALID = 2 };
struct sim_module *sim_image_load(const void *bytes, int *status, char *why, size_t why_size);

/* Unloads a module that no queued kernel uses. */
void sim_image_unload(struct sim_module *module);

/* A kernel by its name, or NULL. The pointer is the same for each call, and valid until the unload. */
struct sim_function *sim_image_function(struct sim_module *module, const char *name);

/* All kernels of a module, in a fixed order. */
unsigned sim_image_function_count(struct sim_module *module);
struct sim_function *sim_image_function_at(struct sim_module *module, unsigned index);

/* A global variable's address and size in bytes; returns 0, or -1 when there is none of that name. */
int sim_image_global(struct sim_module *module, const char *name, void **address, size_t *size);

/* What the image was compiled for: the number of a real architecture, that of a virtual one negative, or 0. */
int sim_image_architecture(const struct sim_module *module);

/* What a kernel is. */
const char *sim_function_name(const struct sim_function *function);
unsigned sim_function_max_threads(const struct sim_function *function);   /* of a block */
unsigned sim_function_static_shared(const struct sim_function *function); /* bytes */
unsigned sim_function_parameter_count(const struct sim_function *function);
/* Offset in the packed arguments, and size, of parameter `index` < count. */
void sim_function_parameter(const struct sim_function *function, unsigned index, size_t *offset, size_t *size);
size_t sim_function_argument_bytes(const struct sim_function *function); /* of all packed arguments */

/* Runs all blocks of a launch on the calling thread, and returns when all have run: 0, or a nonzero
 * number of its own (the engine takes it for a fault of the kernel). `arguments` are packed as
 * sim_function_parameter says, aligned to 64 bytes, constant during the call. `shared` is the dynamic
 * shared memory in bytes. Every number in `grid` and `block` is > 0, and block sizes fit the limits.
 *
 * The engine calls it inside sim_guard (below): an access to memory that is not there (past the end
 * of an allocation, freed) leaves the call by siglongjmp, from whatever stack the fault came on. So it
 * holds no lock while kernel code runs, and the next call on the same thread starts clean. */
int sim_kernel_run(const struct sim_function *function, const unsigned grid[3], const unsigned block[3],
                   unsigned shared, const void *arguments);

/* The engine's: calls body(argument) and returns 0, or 1 when it touched memory that it may not
 * (SIGSEGV, SIGBUS) or trapped (SIGILL, SIGFPE, SIGTRAP: 2); `*address` is then the address, if not NULL.
 * May be nested; a fault ends the innermost. */
int sim_guard(void (*body)(void *argument), void *argument, uintptr_t *address);

#endif
