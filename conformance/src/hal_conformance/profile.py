"""Profiles: what a vendor declares about a backend.

A profile is an entry point in the group ``hal.conformance`` whose name is the
backend's name and whose object is a `Profile`. A backend without one runs with
the empty profile.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

__all__ = ["ENTRY_POINT_GROUP", "Profile", "ProfileError", "load_profile"]

ENTRY_POINT_GROUP = "hal.conformance"


class ProfileError(Exception):
    """A profile cannot be loaded, or breaks the rules of profiles."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a backend cannot do, and what it does not do yet.

    Keys are ids of tests, or globs of them (``*``, ``?``, ``[!...]``): of the
    text before the brackets of a parametrised test, or of the whole id.
    Strict both ways: a listed failure that passes, and a key that matches no
    test, fail the run. Any entry makes the verdict "partial".

    Attributes
    ----------
    unsupported
        Tests that are not run, with the reason why the backend can never pass them.
    expected_failures
        Tests that are run and must fail, with the reason: what is missing.
    parameters
        Device parameters for `hal.create_device`, besides those of the run.
    image
        An image with the kernels of `hal_conformance.kernels`, for a device
        that does not compile. Without it and without the feature ``compile``
        the tests that need kernels are not run.
    """

    unsupported: Mapping[str, str] = field(default_factory=dict)
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    image: bytes | None = None

    def __post_init__(self) -> None:
        """Check that each key has a reason."""
        for key, reason in (*self.unsupported.items(), *self.expected_failures.items()):
            if not (isinstance(key, str) and isinstance(reason, str) and reason.strip()):
                message = f"{key!r} is listed with no reason; say why, in a sentence"
                raise ProfileError(message)

    def reason_unsupported(self, test: str) -> str | None:
        """Return why a test is not run, or None."""
        return _find(self.unsupported, test)

    def reason_expected(self, test: str) -> str | None:
        """Return why a test is expected to fail, or None."""
        return _find(self.expected_failures, test)

    def problems(self, tests: Iterable[str]) -> tuple[str, ...]:
        """Return a line for each key that matches no test of the suite."""
        known = tuple(tests)
        return tuple(
            f"the profile's {title} {key!r} matches no test of the suite"
            for title, listed in (
                ("unsupported", self.unsupported),
                ("expected failure", self.expected_failures),
            )
            for key in sorted(listed)
            if not any(_matches(key, test) for test in known)
        )


def load_profile(backend: str) -> Profile:
    """Return a backend's profile, or the empty one if it has none.

    Raises `ProfileError` if it cannot be loaded or is not a `Profile`, and
    if two distributions provide one for the same backend.
    """
    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == backend]
    if not found:
        return Profile()
    if len(found) > 1:
        origins = " and ".join(sorted(point.dist.name if point.dist else "?" for point in found))
        message = f"{origins} both provide a profile for {backend!r}; uninstall one of them"
        raise ProfileError(message)
    try:
        profile = found[0].load()
    except Exception as error:
        message = f"the profile {found[0].value} cannot be loaded: {error!r}"
        raise ProfileError(message) from error
    if not isinstance(profile, Profile):
        message = (
            f"the profile {found[0].value} is a {type(profile).__name__}, "
            "not a hal_conformance.Profile"
        )
        raise ProfileError(message)
    return profile


def _find(listed: Mapping[str, str], test: str) -> str | None:
    for key, reason in listed.items():
        if _matches(key, test):
            return reason
    return None


def _matches(key: str, test: str) -> bool:
    """Return whether a key names a test; in a whole id, brackets are not a pattern."""
    function = test.partition("[")[0]
    return key == test or fnmatch.fnmatchcase(function, key) or fnmatch.fnmatchcase(test, key)
