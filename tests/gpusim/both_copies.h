/* Functions of both faces: fills, and where the two sides of a copy between devices have to be. */

static bool are_on(const void *target, int to, const void *source, int from, size_t size) {
  sim_lock();
  const struct sim_block *a = sim_find(target), *b = sim_find(source);
  bool right = !size || (a && b && (a->memory != SIM_DEVICE || a->device == to) && (b->memory != SIM_DEVICE || b->device == from));
  sim_unlock();
  return right;
}

static int set(struct sim_stream *stream, void *target, uint32_t value, unsigned element, size_t count) {
  STREAM(stream);
  const struct sim_set fill = {target, value, element, count};
  END(sim_set(stream, &fill));
}

#define FILL(name_, type_)                                                                   \
  API FACE(name_)(void *target, type_ value, size_t count, struct sim_stream *stream) {      \
    BEGIN(name_, HANDLE);                                                                    \
    return set(stream, target, value, sizeof value, count);                                  \
  }
FILL(MemsetD8Async, unsigned char)
FILL(MemsetD16Async, unsigned short)
FILL(MemsetD32Async, unsigned)
