/* What CUDA's and HIP's faces do alike. A face defines, before it includes this: ENTER and END, which begin and end a
 * call; FACE, which puts its prefix before the name of a function; and BEGIN, the CALL of a function of both faces. */
#ifndef GPUSIM_BOTH_H
#define GPUSIM_BOTH_H

#include "sim.h"

#define API SIM_EXPORT int

/* At the top of every call. */
#define CALL(name_, needs_)                        \
  static struct sim_site site_ = {.name = #name_}; \
  {                                                \
    int status_ = ENTER(&site_, (needs_));         \
    if (status_) END(status_);                     \
  }
#define INIT SIM_NEEDS_INIT
#define CONTEXT SIM_NEEDS_CONTEXT
#define UNSAFE SIM_UNSAFE

#define GIVEN(pointer_) \
  if (!(pointer_)) END(SIM_INVALID_VALUE)
#define DEVICE(device_) \
  if (!sim_is_device(device_)) END(SIM_INVALID_DEVICE)

#endif
