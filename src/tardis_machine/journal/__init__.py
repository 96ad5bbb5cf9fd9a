"""The log on disk between the server and the buses: append-only segments and durable cursors.

Layout. A journal directory holds one subdirectory, a *log*, per server process; its number says its
age, whatever the clock says. What is not so named is no log, and what is not a log's own is never
deleted: a directory may be shared with others. A log has one writer, the server, which holds `lock`
for as long as it lives and never reopens a log: after a crash the next server starts a new one.
Segments `N.seg` are numbered from 0; a segment's header says how many messages the log held before
it, so what lies between two places is known without reading it; a server that ends leaves an empty
one behind, which says how many there are in all. An entry is a fixed header
(checksum, version, sizes, message count, position, ingest time), the response's provenance
(msgpack, made once per response) and the NDJSON bytes exactly as the client gets them, before the
client's first byte.

Belonging. `log.json` names the buses a log was written for and where each goes. A server with
another configuration is refused while a log is written to, or holds what such a bus has yet to
get; a publisher leaves logs alone that are not its configuration's.

Reading. Every bus has a cursor `BUS.cursor` in every log: the place of the first entry that is not
wholly resolved, and the counts of what became of all messages before it. It is written into two
slots in turn, each with a checksum: a torn write costs one step and never the cursor.
Readers take a bounded piece at a time and hold no file open. The publisher deletes a segment when
every bus of the log is past it, and a log when its writer is gone and all cursors are at its end.

Damage. An entry that is incomplete or fails its checksum is waited for while its writer lives and
is at it. At the end of a log whose writer was killed, one that is shorter than it should be was
never sent to anyone, and is left out (and said); so is one that power loss made zeros of. Anything
else is passed, counted, and its segment moved to `aside/` instead of deleted; so is a segment whose
header is torn, though its entries are read and counted, and a whole log of another version of the
format. Nothing in `aside/` is ever touched.

Bounds. All segments of the directory together stay within `max_bytes`, over all processes; a write
refused for lack of disk is the same as a full journal. Room is made by replacing the oldest segment
with `N.skip`, a few bytes that name the messages it held. A bus that meets one counts them as
dropped and announces them; a bus already past it never sees it. When paced, that happens only to
buses that have not moved for `stall_s` while the journal was full, or are not configured any more;
live flows and `drop` do not wait for that.

Writing. One thread of a server does it, the scribe: it may be held up by the disk, and nobody else.
A response submits an entry, goes on, and sends it to its client when the entry's ticket is done.
Small entries of a response that come together are written as one. Where there is a ring (see
`ring.py`), the scribe grants a stretch of a segment; within it responses append to the ring by
themselves, and the publisher's process writes what is there. Nothing else is written to a segment,
and none is begun, before the ring is empty.

Durability. `write(2)` survives any process, and so does a mapped file. Against power loss a thread
syncs every interval; a cursor that got ahead of the data it points to means that data was
delivered. What is renamed into place was synced before.
"""

import tardis_machine.posix  # noqa: F401 - raises on other systems
from tardis_machine.journal.cursor import Cursor, CursorState
from tardis_machine.journal.directory import BoundError, Directory, LockedError
from tardis_machine.journal.entry import Entry, Provenance
from tardis_machine.journal.log import Log
from tardis_machine.journal.reader import Gap, Reader
from tardis_machine.journal.scribe import Flow, JournalFullError, Scribe, Ticket, WhenFull
from tardis_machine.journal.segment import OtherVersionError
from tardis_machine.journal.space import Space
from tardis_machine.journal.writer import Writer

__all__ = [
    "BoundError",
    "Cursor",
    "CursorState",
    "Directory",
    "Entry",
    "Flow",
    "Gap",
    "JournalFullError",
    "LockedError",
    "Log",
    "OtherVersionError",
    "Provenance",
    "Reader",
    "Scribe",
    "Space",
    "Ticket",
    "WhenFull",
    "Writer",
]
