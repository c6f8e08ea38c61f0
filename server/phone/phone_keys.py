"""The keys of telephone systems: where they are read, and whether they can be used."""

from __future__ import annotations

from collections.abc import Callable

from voxlane.codecs.extras import install_command
from voxlane.server.config import Config, PhoneKeys
from voxlane.server.errors import ConfigError
from voxlane.server.protocols.phone.signing import CryptographyMissing, SystemKey, check_cryptography
from voxlane.server.protocols.phone.systems import SYSTEMS
from voxlane.server.tenants.accounts import Tenants

PHONE_KEY_VARIABLE = "VOXLANE_PHONE_KEY"
"""Our own key, for systems that do not sign."""

SYSTEM_KEYS = {name: system.key for name, system in SYSTEMS.items() if system.key}


def read_phone_keys(read: Callable[[str], str]) -> PhoneKeys:
    """Return the keys that `read` finds under the names of environment variables."""
    return PhoneKeys(read(PHONE_KEY_VARIABLE), {name: read(key.variable) for name, key in SYSTEM_KEYS.items()})


def check_keys(config: Config, keys: PhoneKeys, tenants: Tenants) -> None:
    """Raise ConfigError for telephone keys that cannot be used, or that do not go with the configuration."""
    public_url = config.phone.public_url
    if public_url and not keys and not tenants.key_needed and not config.server.open:
        names = ", ".join((PHONE_KEY_VARIABLE, *(key.variable for key in SYSTEM_KEYS.values())))
        raise ConfigError(f"phone.public_url is given: one of {names} must be set, or anybody could ring")
    for name, key in SYSTEM_KEYS.items():
        if value := keys.systems.get(name, ""):
            if key.signs_address and not public_url:
                raise ConfigError(f"phone.public_url must be given with {key.variable}")
            _check(key, value)
            if key.needs_phone_key and not keys.phone:
                raise ConfigError(f"{key.variable} needs {PHONE_KEY_VARIABLE}: the API key that the system sends")


def _check(key: SystemKey, value: str) -> None:
    try:
        key.check(value)
        if key.needs_cryptography:
            check_cryptography()
    except ValueError as error:
        raise ConfigError(f"{key.variable}: {error}") from error
    except CryptographyMissing as error:
        raise ConfigError(f"{key.variable} needs the package cryptography: {install_command('phone')}") from error
