"""The table that backends share: what is pinned once, by whom, and until when."""

import random

import pytest

from hal.errors import OperationError
from hal.host_pins import HostPins

TAKEN = 712


class Driver:
    """Pin bytes as drivers do: none twice. It counts; `addresses` may be others' from before."""

    def __init__(self, others=()):
        self.pins = HostPins(TAKEN)
        self.pinned = []
        self.others = list(others)
        self.failing = None

    def pin(self, user, address, size, find=None):
        return self.pins.pin(
            user, address, size, lambda: self._register(address, size), find or (lambda: address)
        )

    def _register(self, address, size):
        if self.failing is not None:
            raise self.failing
        if any(low <= address and address + size <= low + n for low, n in self.others):
            return None
        if any(address < low + n and low < address + size for low, n in self.pinned + self.others):
            raise OperationError("taken", native_name="ALREADY", native_code=TAKEN)
        self.pinned.append((address, size))
        return lambda: self._unregister((address, size))

    def _unregister(self, place):
        self.pinned.remove(place)
        if self.failing is not None:
            raise self.failing


def test_a_range_is_pinned_once_and_until_the_last_has_done_m1():
    driver = Driver()
    assert driver.pin("a", 1000, 100) == 1000
    assert driver.pin("b", 1000, 100) == 1000
    assert driver.pin("b", 1040, 60) == 1040
    assert driver.pinned == [(1000, 100)]
    driver.pins.unpin("a", 1000)
    driver.pins.unpin("b", 1000)
    assert driver.pinned == [(1000, 100)]
    assert driver.pins.is_own(1099)
    assert not driver.pins.is_own(1100)
    driver.pins.unpin("b", 1040)
    assert driver.pinned == []
    assert not driver.pins.is_own(1099)


def test_what_overlaps_is_refused_with_advice_m1():
    driver = Driver()
    driver.pin("a", 1000, 100)
    with pytest.raises(
        OperationError, match=r"a part of the 100 bytes at 0x410 .*at once"
    ) as caught:
        driver.pin("a", 0x410, 100)
    assert (caught.value.native_name, caught.value.native_code) == ("ALREADY", TAKEN)
    driver.pins.unpin("a", 1000)
    assert driver.pinned == []
    driver.pin("a", 0x410, 100)


def test_another_error_is_passed_on_as_it_is_m1():
    driver = Driver()
    driver.failing = OperationError("no", native_code=1)
    with pytest.raises(OperationError) as caught:
        driver.pin("a", 1000, 100)
    assert caught.value is driver.failing
    driver.failing = None
    driver.pin("a", 1000, 100)
    assert driver.pinned == [(1000, 100)]


def test_without_an_address_nothing_stays_pinned_m1():
    driver = Driver()

    def find():
        raise KeyboardInterrupt

    driver.pin("a", 1000, 100)
    with pytest.raises(KeyboardInterrupt):
        driver.pin("b", 1000, 50, find)
    with pytest.raises(KeyboardInterrupt):
        driver.pin("b", 2000, 50, find)
    assert driver.pinned == [(1000, 100)]


def test_what_others_have_pinned_is_theirs_m1():
    driver = Driver([(1000, 100)])
    driver.pin("a", 1000, 10)
    driver.pin("a", 1000, 100)
    assert not driver.pins.is_own(1000)
    driver.pins.unpin("a", 1000)
    driver.pins.unpin("a", 1000)
    assert driver.pinned == []


def test_a_closed_user_is_forgotten_and_no_other_m1():
    driver = Driver()
    for user, address in (("a", 1000), ("a", 2000), ("b", 2000), ("a", 2000), ("a", 3000)):
        driver.pin(user, address, 100)
    driver.failing = OperationError("lost", native_code=719)
    driver.pins.forget("a")
    assert driver.pinned == [(2000, 100)]
    driver.failing = None
    driver.pins.forget("a")
    driver.pins.unpin("b", 2000)
    assert driver.pinned == []


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_pins_and_unpins_ends_with_none_m1(seed):
    chance = random.Random(seed)
    driver, held = Driver([(0, 64)]), []
    for _ in range(300):
        if held and chance.random() < 0.5:
            driver.pins.unpin(*held.pop(chance.randrange(len(held)))[:2])
        else:
            user, address = chance.choice("ab"), 16 * chance.randrange(16)
            size = 16 * chance.randint(1, 6)
            try:
                driver.pin(user, address, size)
            except OperationError:
                continue
            held.append((user, address, size))
        for low, n in driver.pinned:
            assert any(low <= address < low + n for _, address, _ in held)
        for _, address, size in held:
            places = driver.pinned + driver.others
            assert any(low <= address and address + size <= low + n for low, n in places)
    for user, address, _ in held:
        driver.pins.unpin(user, address)
    assert driver.pinned == []
    assert not driver.pins._uses
