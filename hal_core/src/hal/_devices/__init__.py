"""Devices and queues, which make everything else, and their end with the process."""
