"""Normalized NDJSON to Bronze envelopes: the one code path that encodes."""

from collections.abc import Collection
from functools import lru_cache

from tardis_machine import messages
from tardis_machine.bronze.batch import Buffers, EncodedBatch, Event, Rejected, Series
from tardis_machine.bronze.context import Context
from tardis_machine.bronze.errors import EncodeError
from tardis_machine.bronze.reference import Parts, Reference, error_of, parts, read
from tardis_machine.engine.choice import kernel
from tardis_machine.messages import PAYLOAD_CASES, Message, MessageError


class Encoder:
    """Encodes batches; reused from one to the next by assigning `context`."""

    def __init__(self, context: Context) -> None:
        module = kernel().module
        self._compiled = None if module is None else module.BronzeEncoder()
        self._reference = Reference()
        self.context = context

    @property
    def context(self) -> Context:
        """What the envelopes of the next batch say besides their messages."""
        return self._context

    @context.setter
    def context(self, context: Context) -> None:
        self._shared = context.serialize()
        self._context = context

    def encode_lines(
        self, ndjson: bytes, position: int = 0, include: Collection[str] | None = None
    ) -> EncodedBatch:
        """Encode a batch whose first message has this position in its response.

        A batch must not end inside one local time, or the ids of what follows would be wrong.
        `include` names the payload cases that are wanted, None all of them: others are counted,
        but not encoded, and not even read where the type that a line begins with tells enough.
        """
        if position < 0:
            raise EncodeError(
                f"a position counts from 0, and {position} is below", field="position"
            )
        wanted = None if include is None else frozenset(include)
        if self._compiled is None:
            return self._reference.encode(self._shared, ndjson, position, wanted)
        rejected: list[Rejected] = []

        def odd(line: bytes, position: int) -> Parts | None:
            """Read a line in whatever form."""
            message = read(line, position)
            found = message if isinstance(message, Rejected) else parts(message, line, position)
            if isinstance(found, Rejected):
                rejected.append(found)
                return None
            return found

        data, ends, ids, series, positions, local_us, table, count = self._compiled.encode(
            self._shared, ndjson, position, _bits(wanted), odd
        )
        buffers = Buffers(
            data=data,
            ends=memoryview(ends).cast("I"),
            ids=ids,
            series=memoryview(series).cast("I"),
            positions=memoryview(positions).cast("Q"),
            local_us=memoryview(local_us).cast("q"),
            table=tuple([Series(*each) for each in table]),
        )
        return EncodedBatch(buffers, count, rejected)

    def encode_line(self, line: bytes, position: int = 0) -> Event | Rejected:
        """Encode a single line as if it were the only one of its local time."""
        [result] = self.encode_lines(line, position).in_order()
        return result

    def encode(self, message: Message, position: int = 0) -> Event:
        """Encode a single message as if it were the only one of its local time."""
        try:
            line = messages.encode_line(message)
        except MessageError as error:
            raise error_of(message, error.reason, error.field) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise error_of(message, str(error)) from error
        event = self.encode_line(line, position)
        if isinstance(event, Rejected):
            raise event.error
        return event


def encode(message: Message, context: Context, position: int = 0) -> bytes:
    """Encode one message; for many, an Encoder is far faster."""
    return Encoder(context).encode(message, position).value


@lru_cache(maxsize=64)
def _bits(include: frozenset[str] | None) -> int:
    """Name payload cases by a bit each, as the kernel does."""
    cases = PAYLOAD_CASES if include is None else include
    return sum(1 << PAYLOAD_CASES.index(case) for case in cases)
