"""The table of C functions that a device may give the core, checked when the device is opened."""

import re

import pytest

import hal
from hal._backends import registry
from hal.errors import PluginError
from hal.native import CallTable

GOOD = CallTable(*range(1, 1 + len(CallTable._fields)))


@pytest.fixture
def opened(monkeypatch):
    """Return a function that opens a device with a given table, and the closed devices."""
    _, driver, _, _ = registry.resolve("cpu", {})
    closed = []

    def open_device(table, features=None):
        class Tabled(type(driver.open_device(0, {}))):
            __slots__ = ()

            def call_table(self):
                return table

            def close(self):
                closed.append(self)
                super().close()

        def make(self, index, parameters):
            native = Tabled(self, self.devices()[index], 1, 0)
            native.features = native.features if features is None else features
            return native

        monkeypatch.setattr(type(driver), "open_device", make)
        return hal.create_device("cpu")

    open_device.closed = closed
    return open_device


@pytest.mark.parametrize("table", [None, GOOD, GOOD._replace(current=0, context=0)])
def test_a_table_or_none_is_kept(opened, table):
    with opened(table) as device:
        assert device._context.calls is table


@pytest.mark.parametrize("wrong", [(), tuple(GOOD), [1], 7, {"launch": 1}])
def test_what_is_no_table_is_refused(opened, wrong):
    with pytest.raises(PluginError, match=f"cpu:0: .*returned {type(wrong).__name__}, and must"):
        opened(wrong)
    assert len(opened.closed) == 1


@pytest.mark.parametrize("field", CallTable._fields)
@pytest.mark.parametrize("value", [-1, 2**64, None, 1.0, "1", True, b"\1"])
def test_a_field_that_is_no_address_is_refused_by_name(opened, field, value):
    with pytest.raises(PluginError, match=f" {field}={re.escape(repr(value))}, which is no int"):
        opened(GOOD._replace(**{field: value}))
    assert len(opened.closed) == 1


@pytest.mark.parametrize("field", CallTable._fields)
def test_zero_is_refused_where_the_core_would_call_it(opened, field):
    table = GOOD._replace(**{field: 0})
    if field in {"current", "context", *CallTable._field_defaults}:
        opened(table).close()
        return
    with pytest.raises(PluginError, match=rf" {field}=0, which is no int from 1 to "):
        opened(table)


def test_only_a_device_with_graphs_must_launch_them(opened):
    features = frozenset(hal.native.FEATURES - {"graphs", "async_allocations"})
    opened(GOOD._replace(launch_graph=0), features).close()


def test_a_status_is_a_c_int(opened):
    with pytest.raises(PluginError, match="not_ready=2147483648"):
        opened(GOOD._replace(not_ready=2**31))
