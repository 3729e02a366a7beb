"""The classes that a vendor implements."""

from __future__ import annotations

import pytest

from hal.native import NativeDevice, NativeDriver


@pytest.mark.parametrize("kind", [NativeDriver, NativeDevice])
def test_a_class_that_lacks_a_primitive_makes_no_object(kind: type) -> None:
    """The missing primitive is named when the object is made, instead of doing nothing later."""
    names = sorted(kind.__abstractmethods__)  # type: ignore[attr-defined]
    assert names
    for missing in names:
        body = {name: lambda self: None for name in names if name != missing}
        with pytest.raises(TypeError, match=rf"\b{missing}\b"):
            type("Lacking", (kind,), body)()
