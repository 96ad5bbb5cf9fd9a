//! Normalized NDJSON to Bronze envelopes, whole batches with the interpreter's lock released.

mod payloads;
mod wire;

use std::collections::HashMap;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use xxhash_rust::xxh3::xxh3_128;

use crate::guard::guarded;
use crate::hashing::Seeded;
use payloads::{Case, Found, Payloads};

const MAX_SERIES: usize = 100_000;
const ID_LENGTH: usize = 32;
/// Field numbers of the envelope.
const EXCHANGE: u64 = 2;
const SYMBOL: u64 = 3;
const LOCAL_TIME: u64 = 4;
const EVENT_ID: u64 = 20;
const POSITION: u64 = 21;
const LOCAL_PRECISION: u64 = 23;

/// What the events of one exchange, symbol, case and name have in common.
struct Series {
    case: Case,
    exchange: String,
    symbol: String,
    name: String,
    /// How the text begins that ids are made of.
    identity: Vec<u8>,
    /// Exchange and symbol as the envelope has them.
    envelope: Vec<u8>,
    /// The batch it was met in last, and its place in that batch's table.
    batch: u64,
    place: u32,
}

impl Series {
    fn new(case: Case, exchange: &str, symbol: &str, name: &str) -> Self {
        let mut identity = Vec::new();
        for part in [exchange, symbol, case.name(), name] {
            identity.extend_from_slice(format!("{}:{part},", part.len()).as_bytes());
        }
        let mut envelope = Vec::new();
        wire::name(&mut envelope, EXCHANGE, exchange.as_bytes());
        wire::name(&mut envelope, SYMBOL, symbol.as_bytes());
        Self {
            case,
            exchange: exchange.to_owned(),
            symbol: symbol.to_owned(),
            name: name.to_owned(),
            identity,
            envelope,
            batch: 0,
            place: 0,
        }
    }

    fn data_type(&self) -> &str {
        if self.name.is_empty() { self.case.message_type() } else { &self.name }
    }
}

/// A line that Python has read, in the parts that an envelope is put together of.
struct OddLine {
    case: Case,
    exchange: String,
    symbol: String,
    name: String,
    /// What follows the series' identity in the text that the id is made of.
    id_text: Vec<u8>,
    local_us: i64,
    local_field: Vec<u8>,
    payload: Vec<u8>,
}

/// What becomes of a batch, each part in the bytes of one kind of number.
#[derive(Default)]
struct Output {
    data: Vec<u8>,
    ends: Vec<u8>,
    ids: Vec<u8>,
    series: Vec<u8>,
    positions: Vec<u8>,
    local_us: Vec<u8>,
}

/// Everything that is kept from one batch to the next.
#[derive(Default)]
struct State {
    series: Vec<Series>,
    known: HashMap<Vec<u8>, usize, Seeded>,
    batch: u64,
    table: Vec<usize>,
    payloads: Payloads,
    ordinals: HashMap<u128, u32, Seeded>,
    payload: Vec<u8>,
    key: Vec<u8>,
}

impl State {
    fn begin(&mut self) {
        if self.series.len() >= MAX_SERIES {
            self.series.clear();
            self.known.clear();
        }
        self.batch += 1;
        self.table.clear();
        self.ordinals.clear();
    }

    /// Find or make the series, and give its index.
    fn meet(&mut self, case: Case, exchange: &[u8], symbol: &[u8], name: &[u8]) -> usize {
        self.key.clear();
        self.key.push(case as u8);
        for part in [exchange, symbol, name] {
            // No UTF-8 has this byte.
            self.key.extend_from_slice(part);
            self.key.push(0xff);
        }
        let index = match self.known.get(&self.key) {
            Some(index) => *index,
            None => {
                let text = String::from_utf8_lossy;
                self.series.push(Series::new(case, &text(exchange), &text(symbol), &text(name)));
                self.known.insert(self.key.clone(), self.series.len() - 1);
                self.series.len() - 1
            }
        };
        let series = &mut self.series[index];
        if series.batch != self.batch {
            series.batch = self.batch;
            series.place = self.table.len() as u32;
            self.table.push(index);
        }
        index
    }

    /// Make the id of an event: `id_text` and then `content` follow the identity of its series.
    fn id(&mut self, index: usize, id_text: &[u8], content: &[u8]) -> u128 {
        let key = &mut self.key;
        key.clear();
        key.extend_from_slice(&self.series[index].identity);
        key.extend_from_slice(id_text);
        key.extend_from_slice(content);
        let id = xxh3_128(key);
        let ordinal = self.ordinals.entry(id).and_modify(|ordinal| *ordinal += 1).or_insert(0);
        if *ordinal == 0 {
            return id;
        }
        key.extend_from_slice(format!("#{ordinal}").as_bytes());
        xxh3_128(key)
    }

    fn encode(&mut self, line: &[u8], included: u32) -> Result<Option<Encoded>, crate::json::Odd> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        let found = self.payloads.write(line, included, &mut payload);
        self.payload = payload;
        let Found::Line(line) = found? else { return Ok(None) };
        let index = self.meet(line.case, line.exchange, line.symbol, line.name);
        let mut text = [0; 27];
        let (head, end) = line.local.split_at(line.local.len() - 1);
        text[..head.len()].copy_from_slice(head);
        text[head.len()..].fill(b'0');
        text[26] = end[0];
        let payload = std::mem::take(&mut self.payload);
        let (start, end) = line.content;
        let id = self.id(index, &text, &payload[start..end]);
        self.payload = payload;
        let mut local_field = Field::default();
        local_field.write(&line.local_time);
        let time = line.local_time;
        let local_us = time.second * 1_000_000 + i64::from(time.microsecond);
        Ok(Some(Encoded { index, id, local_us, local_field }))
    }
}

/// A line on its way into the output; its payload is in the state.
struct Encoded {
    index: usize,
    id: u128,
    local_us: i64,
    local_field: Field,
}

/// The local time's field, short enough for the stack.
#[derive(Default)]
struct Field {
    bytes: Vec<u8>,
}

impl Field {
    fn write(&mut self, time: &crate::times::Time) {
        wire::time(&mut self.bytes, LOCAL_TIME, LOCAL_PRECISION, time);
    }
}

impl Output {
    #[allow(clippy::too_many_arguments, reason = "the parts of an envelope, in its order")]
    fn put(
        &mut self,
        shared: &[u8],
        series: &Series,
        local_us: i64,
        local_field: &[u8],
        id: u128,
        position: u64,
        payload: &[u8],
    ) {
        let data = &mut self.data;
        data.extend_from_slice(shared);
        data.extend_from_slice(&series.envelope);
        data.extend_from_slice(local_field);
        wire::tag(data, EVENT_ID);
        data.push(ID_LENGTH as u8);
        let id = hex(id);
        data.extend_from_slice(&id);
        wire::varint(data, POSITION << 3);
        wire::varint(data, position);
        wire::text(data, series.case.field(), payload);
        self.ids.extend_from_slice(&id);
        self.ends.extend_from_slice(&(data.len() as u32).to_ne_bytes());
        self.series.extend_from_slice(&series.place.to_ne_bytes());
        self.positions.extend_from_slice(&position.to_ne_bytes());
        self.local_us.extend_from_slice(&local_us.to_ne_bytes());
    }
}

fn hex(id: u128) -> [u8; ID_LENGTH] {
    let mut text = [0; ID_LENGTH];
    for (at, byte) in id.to_be_bytes().into_iter().enumerate() {
        text[2 * at] = b"0123456789abcdef"[usize::from(byte >> 4)];
        text[2 * at + 1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    text
}

/// Encodes batches of one publisher, one after the other.
#[pyclass(module = "tardis_machine._kernel")]
pub struct BronzeEncoder {
    state: State,
}

#[pymethods]
impl BronzeEncoder {
    #[new]
    fn new() -> Self {
        Self { state: State::default() }
    }

    /// Encode a batch of whole lines.
    ///
    /// `included` has a bit for each payload case that is wanted. Lines in any form but the
    /// emitter's go to `odd(line, position)`, which gives None or the parts of an envelope.
    /// Returns data, ends, ids, series, positions, local times, the table of series, and how many
    /// messages there were.
    #[allow(clippy::too_many_arguments, reason = "called from one place")]
    fn encode<'py>(
        &mut self,
        py: Python<'py>,
        shared: &Bound<'py, PyBytes>,
        ndjson: &Bound<'py, PyBytes>,
        position: u64,
        included: u32,
        odd: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let shared = shared.as_bytes();
        let ndjson = ndjson.as_bytes();
        let state = &mut self.state;
        let (output, next) =
            guarded(|| py.detach(|| encode_all(state, shared, ndjson, position, included, &odd)))?;
        let table: Vec<_> = state
            .table
            .iter()
            .map(|index| {
                let series = &state.series[*index];
                (series.exchange.as_str(), series.symbol.as_str(), series.case.name(), series.data_type())
            })
            .collect();
        (
            PyBytes::new(py, &output.data),
            PyBytes::new(py, &output.ends),
            PyBytes::new(py, &output.ids),
            PyBytes::new(py, &output.series),
            PyBytes::new(py, &output.positions),
            PyBytes::new(py, &output.local_us),
            table,
            next - position,
        )
            .into_pyobject(py)
    }
}

fn encode_all(
    state: &mut State,
    shared: &[u8],
    ndjson: &[u8],
    mut position: u64,
    included: u32,
    odd: &Py<PyAny>,
) -> PyResult<(Output, u64)> {
    state.begin();
    let mut output = Output::default();
    output.data.reserve(ndjson.len() + ndjson.len() / 4);
    for line in lines(ndjson) {
        match state.encode(line, included) {
            Ok(Some(encoded)) => {
                let series = &state.series[encoded.index];
                let (local_us, field) = (encoded.local_us, &encoded.local_field.bytes);
                output.put(shared, series, local_us, field, encoded.id, position, &state.payload);
            }
            Ok(None) => {}
            Err(_) => {
                if let Some(found) = ask(odd, line, position)? {
                    if found.case.is_in(included) {
                        let (exchange, symbol) = (found.exchange.as_bytes(), found.symbol.as_bytes());
                        let index = state.meet(found.case, exchange, symbol, found.name.as_bytes());
                        let id = state.id(index, &found.id_text, b"");
                        let series = &state.series[index];
                        let (local_us, field) = (found.local_us, &found.local_field);
                        output.put(shared, series, local_us, field, id, position, &found.payload);
                    }
                }
            }
        }
        if output.data.len() > u32::MAX as usize {
            return Err(PyOverflowError::new_err("a batch of envelopes has at most 4 GiB"));
        }
        position += 1;
    }
    Ok((output, position))
}

/// Lines that are not blank.
fn lines(ndjson: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = ndjson;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        Some(line)
    })
    .filter(|line| !line.iter().all(|byte| matches!(byte, b' ' | 9..=13)))
}

fn ask(odd: &Py<PyAny>, line: &[u8], position: u64) -> PyResult<Option<OddLine>> {
    Python::attach(|py| {
        let answer = odd.bind(py).call1((PyBytes::new(py, line), position))?;
        if answer.is_none() {
            return Ok(None);
        }
        #[allow(clippy::type_complexity, reason = "taken apart at once")]
        let (case, exchange, symbol, name, id_text, local_us, local_field, payload): (
            usize,
            String,
            String,
            String,
            Vec<u8>,
            i64,
            Vec<u8>,
            Vec<u8>,
        ) = answer.extract()?;
        let case = Case::of(case).ok_or_else(|| PyOverflowError::new_err("no such payload case"))?;
        Ok(Some(OddLine { case, exchange, symbol, name, id_text, local_us, local_field, payload }))
    })
}
