"""A network that learns handwritten digits, for `training.py` and `data_parallel.py`.

- `digits.training`: replicas on several devices, and what merges their gradients. The part to learn
  from.
- `digits.network`: a replica, and its kernels.
- `digits.curves`: the pictures of the losses and of the queues.
"""
