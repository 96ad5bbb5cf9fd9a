"""How errors are told to clients."""

from aiohttp import web

from tardis_machine.errors import TardisMachineError


def failure(status: int, message: str) -> web.Response:
    """Answer with a JSON body that says what was wrong."""
    return web.json_response({"message": message}, status=status)


def status_of(error: BaseException) -> int:
    """Answer an error with its own status: the upstream's, or what the options deserve."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) and 400 <= status <= 599 else 500


def text_of(error: BaseException) -> str:
    """Give the text a client may see: ours are written for it, others stay in the log."""
    if isinstance(error, TardisMachineError):
        return str(error)
    return f"internal error ({type(error).__name__}): see the server's log"
