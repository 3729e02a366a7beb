"""Import what nobody installed, as a plugin does whose author forgot a dependency."""

import a_module_that_nobody_has  # noqa: F401
