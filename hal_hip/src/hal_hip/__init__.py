"""The HIP backend of hal: AMD GPUs through hip-python."""
