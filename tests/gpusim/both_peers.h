/* Functions of both faces: peers. */

API FACE(DeviceCanAccessPeer)(int *can, int device, int peer) {
  BEGIN(DeviceCanAccessPeer, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(can);
  DEVICE(device);
  DEVICE(peer);
  *can = device != peer && !sim_setting("GPUSIM_NO_PEERS", 0);
  return SIM_OK;
}

/* The current device's access to another one's memory. */
static int enable_access(int peer) {
  if (sim_setting("GPUSIM_NO_PEERS", 0)) return SIM_PEER_UNSUPPORTED;
  struct sim_device *device = &sim.devices[CURRENT_DEVICE];
  sim_lock();
  bool already = device->peers >> peer & 1;
  device->peers |= 1u << peer;
  sim_unlock();
  return already ? SIM_PEER_ALREADY_ENABLED : SIM_OK;
}
