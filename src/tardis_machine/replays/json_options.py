"""Requests as clients of the server write them: JSON."""

import msgspec

from tardis_machine.replays.requests import OptionsError, Request


def read_requests(text: str | None) -> list[Request]:
    """Read the requests of an address: a JSON object, or an array of them."""
    if not text:
        raise OptionsError(
            'missing "options": expected a URL-encoded JSON object, or an array of them'
        )
    try:
        decoded = msgspec.json.decode(text)
    except RecursionError:
        raise OptionsError(
            'invalid "options": nested too deeply, expected a JSON object, or an array of them'
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise OptionsError(f'invalid "options": not JSON ({error})') from None
    objects = decoded if isinstance(decoded, list) else [decoded]
    if not objects or not all(isinstance(entry, dict) for entry in objects):
        raise OptionsError('invalid "options": expected a JSON object, or an array of them')
    return [Request(entry) for entry in objects]
