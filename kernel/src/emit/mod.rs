//! The emitter that mappers call: the arguments of `emit/protocol.py`, in the same order.

mod arguments;
mod bars;
mod book;
mod engine;
mod groups;
mod layouts;
mod levels;
mod out;
mod shapes;
mod snapshots;
mod tables;
mod text;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PySequence, PySlice, PyString, PyTuple};

use crate::guard::guarded;
use crate::hashing::Seeded;
use crate::lines::{Lines, MESSAGE, local_of};
use crate::pour::{Pour, TOO_MUCH};
use crate::times::Printed;
use arguments::{Odd, raw, utf8, write_integer};
use bars::{BarType, Kind};
use engine::{BOOK_TICKER, DERIVATIVE_TICKER, Engine, FUNDING_TIME, LIQUIDATION, Mark, OPTION_SUMMARY};
use layouts::Layout;
use levels::{Levels, Needs};
pub use out::Sink;
use out::{Out, Written};
pub use shapes::{LatestTimes, UpdateGate, UpdateGates};
use shapes::{Memory, Shapes};
use snapshots::SnapshotType;
pub use tables::Prices;
use tables::Table;
use text::write_quoted;

const COMMON_ORDER: [&str; 4] = ["askAmount", "askPrice", "bidPrice", "bidAmount"];
const SUMMARY_KEYS: [&[u8]; 16] = [
    b",\"bestBidPrice\":",
    b",\"bestBidAmount\":",
    b",\"bestBidIV\":",
    b",\"bestAskPrice\":",
    b",\"bestAskAmount\":",
    b",\"bestAskIV\":",
    b",\"lastPrice\":",
    b",\"openInterest\":",
    b",\"markPrice\":",
    b",\"markIV\":",
    b",\"delta\":",
    b",\"gamma\":",
    b",\"vega\":",
    b",\"theta\":",
    b",\"rho\":",
    b",\"underlyingPrice\":",
];

type Object<'py> = Bound<'py, PyAny>;
type Optional<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// What is known of each local timestamp that emitted something.
struct Marks {
    stamps: Vec<u8>,
    marks: Vec<Mark>,
}

impl Marks {
    fn stamp(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.marks[before].stamp_end as usize);
        &self.stamps[start..self.marks[at].stamp_end as usize]
    }
}

/// What a column has of a mark.
#[derive(Clone, Copy)]
enum Aspect {
    Stamp,
    End,
    Count,
}

/// One aspect of all marks, as a sequence whose items are made when they are asked for.
#[pyclass(frozen, sequence, module = "tardis_machine._kernel")]
pub struct Column {
    marks: Arc<Marks>,
    aspect: Aspect,
}

impl Column {
    fn item<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Object<'py>> {
        let mark = &self.marks.marks[at];
        Ok(match self.aspect {
            Aspect::Stamp => PyString::new(py, utf8(self.marks.stamp(at))?).into_any(),
            Aspect::End => mark.end.into_pyobject(py)?.into_any(),
            Aspect::Count => mark.count.into_pyobject(py)?.into_any(),
        })
    }
}

#[pymethods]
impl Column {
    fn __len__(&self) -> usize {
        self.marks.marks.len()
    }

    fn __eq__<'py>(&self, py: Python<'py>, other: &Object<'py>) -> PyResult<bool> {
        let items = (0..self.marks.marks.len()).map(|at| self.item(py, at)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, items)?.eq(other)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: &Object<'py>) -> PyResult<Object<'py>> {
        let length = self.marks.marks.len();
        if let Ok(slice) = at.cast::<PySlice>() {
            let indices = slice.indices(length as isize)?;
            let list = PyList::empty(py);
            let mut at = indices.start;
            for _ in 0..indices.slicelength {
                list.append(self.item(py, at as usize)?)?;
                at += indices.step;
            }
            return Ok(list.into_any());
        }
        let at: isize = at.extract()?;
        let at = if at < 0 { at + length as isize } else { at };
        if at < 0 || at >= length as isize {
            return Err(PyIndexError::new_err("no such local timestamp"));
        }
        self.item(py, at as usize)
    }
}

/// The bytes emitted since the last take, and where each local timestamp's end.
#[pyclass(frozen, module = "tardis_machine._kernel")]
pub struct Taken {
    written: Written,
    #[pyo3(get)]
    count: u32,
    marks: Arc<Marks>,
}

impl Taken {
    fn column(&self, aspect: Aspect) -> Column {
        Column { marks: self.marks.clone(), aspect }
    }

    pub fn text<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        self.written.text(py)
    }

    /// How many local timestamps there are.
    pub fn times(&self) -> usize {
        self.marks.marks.len()
    }

    #[inline]
    pub fn stamp(&self, at: usize) -> &[u8] {
        self.marks.stamp(at)
    }

    /// Where a local timestamp's bytes begin.
    #[inline]
    pub fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.marks.marks[before].end)
    }
}

#[pymethods]
impl Taken {
    #[getter]
    fn data(&self, py: Python) -> Py<PyBytes> {
        self.written.bytes(py).clone_ref(py)
    }

    /// The same without a copy: bytes, or a bytearray.
    #[getter]
    fn written<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.written.object(py)
    }

    #[getter]
    fn stamps(&self) -> Column {
        self.column(Aspect::Stamp)
    }

    #[getter]
    fn ends(&self) -> Column {
        self.column(Aspect::End)
    }

    #[getter]
    fn counts(&self) -> Column {
        self.column(Aspect::Count)
    }

    /// Whether no local timestamp is earlier than the one before it.
    #[getter]
    fn is_ordered(&self) -> bool {
        (1..self.marks.marks.len()).all(|at| self.marks.stamp(at - 1) <= self.marks.stamp(at))
    }
}

/// Writes the messages of one stream of one exchange exactly as clients expect them.
#[pyclass(module = "tardis_machine._kernel")]
pub struct Emitter {
    engine: Engine,
    odd: Odd,
    shapes: Shapes,
    layouts: Vec<(Py<PyAny>, Layout)>,
    tables: Vec<(Py<PyAny>, Table)>,
    bids: Levels,
    asks: Levels,
    price: Vec<u8>,
    amount: Vec<u8>,
    id: Vec<u8>,
}

/// Name, depth, the interval and its text, the grouping, its text and its scale.
type SnapshotSpec = (String, usize, f64, String, Option<(f64, String, f64)>);
/// Name, kind, the interval and its text.
type BarSpec = (String, String, f64, String);

#[pymethods]
impl Emitter {
    /// `sends` has a bit for each normalized type that is sent; `readers` are Python's, for
    /// arguments in unusual forms.
    #[new]
    fn new(
        exchange: String,
        sends: u8,
        bars: Vec<BarSpec>,
        snapshots: Vec<SnapshotSpec>,
        readers: Py<PyAny>,
    ) -> PyResult<Self> {
        let bar_type = |(name, kind, interval, text): BarSpec| -> PyResult<BarType> {
            let head = format!(",\"name\":\"{name}\",\"interval\":{text},\"kind\":\"{kind}\",\"open\":");
            let kind = match kind.as_str() {
                "time" => Kind::Time,
                "tick" => Kind::Tick,
                "volume" => Kind::Volume,
                _ => return Err(PyValueError::new_err(format!("no such kind of bar: {kind}"))),
            };
            Ok(BarType { head: head.into_bytes(), kind, interval })
        };
        let snapshot_type = |(name, depth, interval, text, grouping): SnapshotSpec| {
            let mut head = format!(",\"name\":\"{name}\",\"depth\":{depth},\"interval\":{text},");
            if let Some((_, text, _)) = &grouping {
                head.push_str(&format!("\"grouping\":{text},"));
            }
            let grouping = grouping.map(|(grouping, _, scale)| (grouping, scale));
            SnapshotType { head: head.into_bytes(), depth, interval, grouping }
        };
        let bars = bars.into_iter().map(bar_type).collect::<PyResult<Vec<_>>>()?;
        let snapshots = snapshots.into_iter().map(snapshot_type).collect();
        Ok(Self {
            engine: Engine::new(exchange, sends, bars, snapshots),
            odd: Odd { readers },
            shapes: Shapes::default(),
            layouts: Vec::new(),
            tables: Vec::new(),
            bids: Levels::default(),
            asks: Levels::default(),
            price: Vec::new(),
            amount: Vec::new(),
            id: Vec::new(),
        })
    }

    #[getter]
    fn exchange(&self) -> &str {
        &self.engine.exchange
    }

    #[getter]
    fn ignored_changes(&self) -> u64 {
        self.engine.ignored_changes
    }

    fn begin(&mut self, local: &Bound<PyString>) -> PyResult<()> {
        self.engine.begin(local.to_str()?.as_bytes());
        Ok(())
    }

    #[pyo3(signature = (symbols))]
    fn allow(&mut self, symbols: Option<HashSet<String>>) {
        let symbols = symbols.map(|symbols| {
            let boxed = symbols.into_iter().map(|symbol| symbol.into_bytes().into_boxed_slice());
            boxed.collect::<HashSet<Box<[u8]>, Seeded>>()
        });
        self.engine.allow(symbols);
    }

    fn met(&self) -> HashSet<Cow<'_, str>> {
        self.engine.names().collect()
    }

    fn forget(&mut self, py: Python) -> PyResult<()> {
        self.engine.forget();
        self.shapes.forget();
        self.tables.clear();
        self.odd.readers.bind(py).call_method0("forget")?;
        Ok(())
    }

    fn reset(&mut self) {
        self.engine.reset();
    }

    fn close_bars(&mut self) -> PyResult<()> {
        guarded(|| Ok(self.engine.close_bars()?))
    }

    fn take(&mut self, py: Python) -> PyResult<Taken> {
        let output = self.engine.finished();
        let written = output.data.take(py)?;
        let count = output.count;
        let (stamps, marks) = output.restart();
        Ok(Taken { written, count, marks: Arc::new(Marks { stamps, marks }) })
    }

    fn order_book_ticker(&mut self, keys: Vec<String>) -> PyResult<()> {
        let places: Vec<usize> =
            keys.iter().filter_map(|key| COMMON_ORDER.iter().position(|known| known == key)).collect();
        let order: [usize; 4] = places
            .try_into()
            .ok()
            .filter(|order: &[usize; 4]| keys.len() == 4 && (0..4).all(|place| order.contains(&place)))
            .ok_or_else(|| PyValueError::new_err(format!("not the keys of a book ticker: {keys:?}")))?;
        self.engine.book_ticker_keys = order;
        Ok(())
    }

    /// A gate, closed, for a mapper that has to see some lines before others.
    fn gate(&self) -> UpdateGate {
        UpdateGate::new()
    }

    /// Gates by symbol, for a channel that all of them share.
    fn gates(&self) -> UpdateGates {
        UpdateGates::default()
    }

    /// Times by symbol, which a mapper tells and asks for.
    fn times(&self) -> LatestTimes {
        LatestTimes::default()
    }

    /// Lines tell their channel behind a constant prefix.
    fn find_prefixed(&mut self, prefix: &[u8]) {
        self.shapes.prefixed(prefix);
    }

    /// Lines tell their channel behind a key within their first bytes.
    fn find_keyed(&mut self, key: &[u8], within: usize) {
        self.shapes.keyed(key, within);
    }

    /// Lines are arrays that end with so many texts, which tell their channel.
    fn find_ending(&mut self, texts: usize) {
        self.shapes.ending(texts);
    }

    /// Lines of a channel have a shape.
    #[pyo3(signature = (head, shape, memory=None))]
    fn describe(&mut self, head: &[u8], shape: &Object, memory: Optional) -> PyResult<()> {
        let memory = Memory::of(memory)?;
        let mut shapes = std::mem::take(&mut self.shapes);
        let result = shapes.describe(head, shape, memory, |layout| {
            match self.tables.iter().position(|(known, _)| known.is(layout)) {
                Some(place) => Ok(place),
                None => self.add_table(layout),
            }
        });
        self.shapes = shapes;
        result
    }

    /// Take lines that have their channel's shape; gives the first that has not, or `end`, and False. What they become is
    /// poured out on the way, if there is a `pour`, where a local time ends: if it is time to wait for that, the next line
    /// is given, and True.
    #[pyo3(signature = (lines, first, end, pour=None, /))]
    fn run(
        &mut self,
        py: Python,
        lines: &Lines,
        first: usize,
        end: usize,
        pour: Option<&Bound<Pour>>,
    ) -> PyResult<(usize, bool)> {
        let is_able = !self.shapes.is_empty() && !self.engine.is_extreme();
        if !is_able && pour.is_none() {
            return Ok((first, false));
        }
        let mut pour = pour.map(|pour| pour.try_borrow_mut()).transpose()?.filter(|pour| pour.is_open);
        self.engine.output.data.start(py)?;
        let result = guarded(|| {
            if let (Some(pour), true) = (&pour, is_able) {
                self.engine.output.data.borrow(py, pour);
            }
            for at in first..end {
                let Some(line) = lines.stamped(py, at) else { return Ok((at, false)) };
                let local = local_of(line);
                if let Some(pour) = &mut pour {
                    if self.engine.is_enough(&local) {
                        if !self.engine.output.pour(py, pour)? {
                            return Ok((at, true));
                        }
                        self.engine.output.data.borrow(py, pour);
                    } else if self.engine.output.data.len() >= TOO_MUCH {
                        // Its local time does not end: whoever takes it waits for that, and this memory is free.
                        pour.is_open = false;
                        return Ok((at, true));
                    }
                }
                if !is_able {
                    return Ok((at, false));
                }
                if self.shapes.emit(&local, &line[MESSAGE..], &mut self.engine, &mut self.tables).is_err() {
                    return Ok((at, false));
                }
            }
            Ok((end, false))
        });
        self.engine.output.data.stop();
        result
    }

    #[pyo3(signature = (symbol, id, price, amount, side, timestamp, /))]
    fn trade(
        &mut self,
        symbol: &Bound<PyString>,
        id: Optional,
        price: &Object,
        amount: &Object,
        side: &Bound<PyString>,
        timestamp: Optional,
    ) -> PyResult<()> {
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        guarded(|| {
            let time = self.read_execution(id, price, amount, timestamp)?;
            let side = side.to_str()?.as_bytes();
            Ok(self.engine.trade(symbol, &self.id, &self.price, &self.amount, side, &time)?)
        })
    }

    #[pyo3(signature = (symbol, id, price, amount, side, timestamp, /))]
    fn liquidation(
        &mut self,
        symbol: &Bound<PyString>,
        id: Optional,
        price: &Object,
        amount: &Object,
        side: &Bound<PyString>,
        timestamp: Optional,
    ) -> PyResult<()> {
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        if !self.engine.sends(LIQUIDATION) {
            return Ok(());
        }
        guarded(|| {
            let time = self.read_execution(id, price, amount, timestamp)?;
            let side = side.to_str()?.as_bytes();
            self.engine.execution(b"liquidation", symbol, &self.id, &self.price, &self.amount, side, &time);
            Ok(())
        })
    }

    #[pyo3(signature = (symbol, is_snapshot, bids, asks, timestamp, layout=None, /))]
    fn book_change(
        &mut self,
        symbol: &Bound<PyString>,
        is_snapshot: bool,
        bids: &Object,
        asks: &Object,
        timestamp: Optional,
        layout: Optional,
    ) -> PyResult<()> {
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        guarded(|| {
            self.bids.clear();
            self.asks.clear();
            let layout = match layout {
                None => None,
                Some(layout) => Some((layout, self.layout(layout)?)),
            };
            let needs = self.engine.needs();
            for (levels, object) in [(&mut self.bids, bids), (&mut self.asks, asks)] {
                let known = layout.as_ref().map_or(&Layout::Pairs, |(_, place)| &self.layouts[*place].1);
                if let (Some(json), Some(needs)) = (raw(object)?, needs) {
                    if layouts::read(&json, known, needs, levels).is_ok() {
                        continue;
                    }
                    levels.clear();
                }
                let given = layout.as_ref().map(|(layout, _)| *layout);
                let pairs = self.odd.readers.bind(object.py()).call_method1("pairs", (object, given))?;
                // Nobody looks at the numbers of levels that nobody needs.
                if let Some(needs) = needs {
                    read_pairs(&pairs, &self.odd, needs, levels)?;
                }
            }
            let time = self.odd.time(&mut self.engine, timestamp)?;
            Ok(self.engine.change(symbol, is_snapshot, &self.bids, &self.asks, &time)?)
        })
    }

    #[pyo3(signature = (symbol, is_snapshot, rows, timestamp, layout, /))]
    fn book_rows(
        &mut self,
        symbol: &Bound<PyString>,
        is_snapshot: bool,
        rows: &Object,
        timestamp: Optional,
        layout: &Object,
    ) -> PyResult<()> {
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        guarded(|| {
            self.bids.clear();
            self.asks.clear();
            let place = self.layout(layout)?;
            let needs = self.engine.needs();
            let (bids, asks) = (&mut self.bids, &mut self.asks);
            let known = &self.layouts[place].1;
            let is_read = match (raw(rows)?, needs) {
                (Some(json), Some(needs)) => layouts::split(&json, known, needs, bids, asks).is_ok(),
                _ => false,
            };
            if !is_read {
                bids.clear();
                asks.clear();
                let sides = self.odd.readers.bind(rows.py()).call_method1("rows", (rows, layout))?;
                if let Some(needs) = needs {
                    read_pairs(&sides.get_item(0)?, &self.odd, needs, bids)?;
                    read_pairs(&sides.get_item(1)?, &self.odd, needs, asks)?;
                }
            }
            let time = self.odd.time(&mut self.engine, timestamp)?;
            Ok(self.engine.change(symbol, is_snapshot, &self.bids, &self.asks, &time)?)
        })
    }

    #[pyo3(signature = (message, layout, /))]
    fn book_table(slf: &Bound<Self>, message: &Object, layout: &Object) -> PyResult<()> {
        let readers = {
            let mut emitter = slf.borrow_mut();
            let emitter = &mut *emitter;
            let is_done = guarded(|| {
                let place = match emitter.tables.iter().position(|(known, _)| known.is(layout)) {
                    Some(place) => place,
                    None => emitter.add_table(layout)?,
                };
                let Some(json) = raw(message)? else { return Ok(false) };
                Ok(emitter.tables[place].1.change(&json, &mut emitter.engine).is_ok())
            })?;
            if is_done {
                return Ok(());
            }
            emitter.odd.readers.clone_ref(slf.py())
        };
        readers.bind(slf.py()).call_method1("table", (slf, message, layout))?;
        Ok(())
    }

    /// What a table remembers, for Python's reader of odd messages.
    fn table_prices(&mut self, layout: &Object) -> PyResult<Prices> {
        let place = match self.tables.iter().position(|(known, _)| known.is(layout)) {
            Some(place) => place,
            None => self.add_table(layout)?,
        };
        Ok(self.tables[place].1.prices.clone())
    }

    #[allow(clippy::too_many_arguments, reason = "a message's fields, by name")]
    #[pyo3(signature = (symbol, timestamp, /, *, last_price=None, open_interest=None, funding_rate=None,
        funding_timestamp=None, predicted_funding_rate=None, index_price=None, mark_price=None))]
    fn derivative_ticker(
        &mut self,
        symbol: &Bound<PyString>,
        timestamp: Optional,
        last_price: Optional,
        open_interest: Optional,
        funding_rate: Optional,
        funding_timestamp: Optional,
        predicted_funding_rate: Optional,
        index_price: Optional,
        mark_price: Optional,
    ) -> PyResult<()> {
        let name = symbol;
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        if !self.engine.sends(DERIVATIVE_TICKER) {
            return Ok(());
        }
        guarded(|| {
            let mut ticker = self.engine.symbols[symbol].ticker.clone().unwrap_or_default();
            self.see_time(&mut ticker, timestamp, name)?;
            let mut changed = false;
            if funding_timestamp.is_some() {
                let time = self.odd.time(&mut self.engine, funding_timestamp)?;
                if ticker.fields[FUNDING_TIME].is_none() || ticker.funding_ms != time.ms {
                    let text = [b"\"", time.as_bytes(), b"\""].concat();
                    ticker.fields[FUNDING_TIME] = Some(text.into());
                    ticker.funding_ms = time.ms;
                    changed = true;
                }
            }
            let numbers = [
                (0, last_price),
                (1, open_interest),
                (2, funding_rate),
                (4, predicted_funding_rate),
                (5, index_price),
                (6, mark_price),
            ];
            for (place, number) in numbers {
                if let Some(number) = number {
                    self.price.clear();
                    self.odd.number(number, &mut self.price)?;
                    if ticker.fields[place].as_deref() != Some(&self.price[..]) {
                        ticker.fields[place] = Some(self.price.as_slice().into());
                        changed = true;
                    }
                }
            }
            if !changed {
                if ticker.time.is_some() {
                    self.engine.symbols[symbol].ticker = Some(ticker);
                }
                return Ok(());
            }
            let time = match ticker.time {
                Some(time) => time,
                None => {
                    let time = self.engine.local_time()?;
                    ticker.time = Some(time);
                    ticker.latest_ms = time.ms;
                    time
                }
            };
            self.engine.write_ticker(symbol, &ticker, &time);
            self.engine.symbols[symbol].ticker = Some(ticker);
            Ok(())
        })
    }

    #[allow(clippy::too_many_arguments, reason = "a message's fields")]
    #[pyo3(signature = (symbol, ask_amount, ask_price, bid_price, bid_amount, timestamp, /))]
    fn book_ticker(
        &mut self,
        symbol: &Bound<PyString>,
        ask_amount: Optional,
        ask_price: Optional,
        bid_price: Optional,
        bid_amount: Optional,
        timestamp: Optional,
    ) -> PyResult<()> {
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        if !self.engine.sends(BOOK_TICKER) {
            return Ok(());
        }
        const KEYS: [&[u8]; 4] =
            [b",\"askAmount\":", b",\"askPrice\":", b",\"bidPrice\":", b",\"bidAmount\":"];
        let numbers = [ask_amount, ask_price, bid_price, bid_amount];
        self.message(b"book_ticker", symbol, timestamp, |odd, order, out| {
            for place in order {
                odd.optional(KEYS[place], numbers[place], out)?;
            }
            Ok(())
        })
    }

    #[allow(clippy::too_many_arguments, reason = "a message's fields, by name")]
    #[pyo3(signature = (symbol, timestamp, /, *, option_type, strike_price, expiration_date,
        best_bid_price=None, best_bid_amount=None, best_bid_iv=None, best_ask_price=None,
        best_ask_amount=None, best_ask_iv=None, last_price=None, open_interest=None, mark_price=None,
        mark_iv=None, delta=None, gamma=None, vega=None, theta=None, rho=None, underlying_price=None,
        underlying_index=None))]
    fn option_summary(
        &mut self,
        symbol: &Bound<PyString>,
        timestamp: Optional,
        option_type: &Bound<PyString>,
        strike_price: &Object,
        expiration_date: &Object,
        best_bid_price: Optional,
        best_bid_amount: Optional,
        best_bid_iv: Optional,
        best_ask_price: Optional,
        best_ask_amount: Optional,
        best_ask_iv: Optional,
        last_price: Optional,
        open_interest: Optional,
        mark_price: Optional,
        mark_iv: Optional,
        delta: Optional,
        gamma: Optional,
        vega: Optional,
        theta: Optional,
        rho: Optional,
        underlying_price: Optional,
        underlying_index: Option<&Bound<PyString>>,
    ) -> PyResult<()> {
        let Some(symbol) = self.allowed(symbol)? else { return Ok(()) };
        if !self.engine.sends(OPTION_SUMMARY) {
            return Ok(());
        }
        let numbers = [
            best_bid_price,
            best_bid_amount,
            best_bid_iv,
            best_ask_price,
            best_ask_amount,
            best_ask_iv,
            last_price,
            open_interest,
            mark_price,
            mark_iv,
            delta,
            gamma,
            vega,
            theta,
            rho,
            underlying_price,
        ];
        let expiration = guarded(|| self.odd.time(&mut self.engine, Some(expiration_date)))?;
        self.message(b"option_summary", symbol, timestamp, |odd, _, out| {
            out.extend_from_slice(b",\"optionType\":\"");
            out.extend_from_slice(option_type.to_str()?.as_bytes());
            out.extend_from_slice(b"\",\"strikePrice\":");
            odd.number(strike_price, out)?;
            out.extend_from_slice(b",\"expirationDate\":\"");
            out.extend_from_slice(expiration.as_bytes());
            out.push(b'"');
            for (key, number) in SUMMARY_KEYS.into_iter().zip(numbers) {
                odd.optional(key, number, out)?;
            }
            if let Some(index) = underlying_index {
                out.extend_from_slice(b",\"underlyingIndex\":");
                write_quoted(index.to_str()?, out);
            }
            Ok(())
        })
    }

    #[pyo3(signature = (symbols=None, /))]
    fn disconnect(&mut self, symbols: Option<Vec<String>>) {
        self.control(b"disconnect", |out| {
            let Some(symbols) = symbols else { return };
            out.extend_from_slice(b",\"symbols\":[");
            for (place, symbol) in symbols.iter().enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                write_quoted(symbol, out);
            }
            out.push(b']');
        });
    }

    #[pyo3(signature = (details, count, /))]
    fn error(&mut self, details: &str, count: i64) {
        self.control(b"error", |out| {
            out.extend_from_slice(b",\"details\":");
            write_quoted(details, out);
            out.extend_from_slice(b",\"subSequentErrorsCount\":");
            write_integer(count, out);
        });
    }
}

impl Emitter {
    /// Find a symbol, unless it may not pass.
    #[inline]
    fn allowed(&mut self, symbol: &Bound<PyString>) -> PyResult<Option<usize>> {
        let index = self.engine.symbol(symbol.to_str()?.as_bytes());
        Ok(index.filter(|index| self.engine.symbols[*index].allowed))
    }

    fn read_execution(
        &mut self,
        id: Optional,
        price: &Object,
        amount: &Object,
        timestamp: Optional,
    ) -> PyResult<Printed> {
        for text in [&mut self.id, &mut self.price, &mut self.amount] {
            text.clear();
        }
        self.odd.number(price, &mut self.price)?;
        self.odd.number(amount, &mut self.amount)?;
        self.odd.id(id, &mut self.id)?;
        self.odd.time(&mut self.engine, timestamp)
    }

    /// A ticker's time never goes back.
    fn see_time(
        &mut self,
        ticker: &mut engine::Ticker,
        time: Optional,
        name: &Bound<PyString>,
    ) -> PyResult<()> {
        let Some(time) = time else { return Ok(()) };
        // What is too large for an i64 is refused below, as any time that cannot be printed.
        if let Some(number) = time.cast_exact::<PyInt>().ok().and_then(|int| int.extract::<i64>().ok()) {
            if number == 0 && ticker.time.is_none() {
                return Err(PyValueError::new_err(format!("no time for {name}")));
            }
            if number == 0 || (number < 0 && number < ticker.latest_ms) {
                return Ok(());
            }
        }
        let is_local = time.cast_exact::<PyString>().is_ok_and(|text| text.len().is_ok_and(|n| n == 0));
        let printed =
            if is_local { self.engine.local_time()? } else { self.odd.time(&mut self.engine, Some(time))? };
        if printed.ms >= ticker.latest_ms {
            ticker.time = Some(printed);
            ticker.latest_ms = printed.ms;
        }
        Ok(())
    }

    /// Write a whole message; what is refused leaves nothing behind.
    fn message(
        &mut self,
        message_type: &[u8],
        symbol: usize,
        timestamp: Optional,
        fields: impl FnOnce(&Odd, [usize; 4], &mut Out) -> PyResult<()>,
    ) -> PyResult<()> {
        let start = self.engine.output.data.len();
        let result = guarded(|| {
            let time = self.odd.time(&mut self.engine, timestamp)?;
            self.engine.head(message_type, symbol);
            fields(&self.odd, self.engine.book_ticker_keys, &mut self.engine.output.data)?;
            self.engine.tail(time.as_bytes());
            Ok(())
        });
        if result.is_err() {
            self.engine.output.data.truncate(start);
        }
        result
    }

    fn control(&mut self, message_type: &[u8], fields: impl FnOnce(&mut Out)) {
        let local = self.engine.local().to_vec();
        let out = &mut self.engine.output.data;
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(message_type);
        out.extend_from_slice(b"\",\"exchange\":");
        write_quoted(&self.engine.exchange, out);
        out.extend_from_slice(b",\"localTimestamp\":\"");
        out.extend_from_slice(&local);
        out.push(b'"');
        fields(out);
        out.extend_from_slice(b"}\n");
        self.engine.output.count += 1;
    }

    /// Find a layout's place; there are as many as an exchange has level formats.
    fn layout(&mut self, layout: &Object) -> PyResult<usize> {
        if let Some(place) = self.layouts.iter().position(|(known, _)| known.is(layout)) {
            return Ok(place);
        }
        self.layouts.push((layout.clone().unbind(), Layout::of(layout)?));
        Ok(self.layouts.len() - 1)
    }

    fn add_table(&mut self, layout: &Object) -> PyResult<usize> {
        // An equal layout is the same table, be it another object.
        for place in 0..self.tables.len() {
            if layout.eq(&self.tables[place].0)? {
                return Ok(place);
            }
        }
        self.tables.push((layout.clone().unbind(), Table::of(layout)?));
        Ok(self.tables.len() - 1)
    }
}

/// Read pairs of price and amount that a mapper made.
fn read_pairs(pairs: &Object, odd: &Odd, needs: Needs, levels: &mut Levels) -> PyResult<()> {
    if let Ok(pairs) = pairs.cast::<PyList>() {
        for pair in pairs {
            read_pair(&pair, odd, needs, levels)?;
        }
    } else {
        for pair in pairs.try_iter()? {
            read_pair(&pair?, odd, needs, levels)?;
        }
    }
    Ok(())
}

#[inline]
fn read_pair(pair: &Object, odd: &Odd, needs: Needs, levels: &mut Levels) -> PyResult<()> {
    let (price, amount) = if let Ok(pair) = pair.cast::<PyTuple>() {
        if pair.len() != 2 {
            return Err(not_a_pair());
        }
        (pair.get_item(0)?, pair.get_item(1)?)
    } else {
        let pair = pair.cast::<PySequence>().map_err(|_| not_a_pair())?;
        if pair.len()? != 2 {
            return Err(not_a_pair());
        }
        (pair.get_item(0)?, pair.get_item(1)?)
    };
    levels.add(needs, |out| odd.number(&price, out), |out| odd.number(&amount, out))
}

fn not_a_pair() -> PyErr {
    PyValueError::new_err("a level that is not a price and an amount")
}
