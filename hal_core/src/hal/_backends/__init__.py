"""Find the installed backends, read a device's specification, and open a driver once."""
