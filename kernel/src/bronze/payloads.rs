//! Lines to payloads: each message in the form and order that emitters print it, or it is odd.

use crate::bronze::wire::{self, Number};
use crate::json::{Cursor, Odd};
use crate::times::{Reader, Time};

/// Characters of an exchange, symbol, name or id; Python counts where there may be more.
const MAX_NAME: usize = 1_000;
const MAX_UINT32: f64 = 4_294_967_295.0;
/// The largest double below 2 to the power of 64.
const MAX_UINT64: f64 = 18_446_744_073_709_549_568.0;

/// Payload cases, with the numbers of `messages.PAYLOAD_CASES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Case {
    Trade,
    BookChange,
    BookSnapshot,
    Quote,
    DerivativeTicker,
    Liquidation,
    OptionSummary,
    BookTicker,
    GroupedBookSnapshot,
    TradeBar,
    Error,
    Disconnect,
}

use Case::*;

const CASES: [Case; 12] = [
    Trade,
    BookChange,
    BookSnapshot,
    Quote,
    DerivativeTicker,
    Liquidation,
    OptionSummary,
    BookTicker,
    GroupedBookSnapshot,
    TradeBar,
    Error,
    Disconnect,
];

impl Case {
    pub fn of(number: usize) -> Option<Self> {
        CASES.get(number).copied()
    }

    /// As configuration and ids spell it.
    pub fn name(self) -> &'static str {
        match self {
            Trade => "trade",
            BookChange => "bookChange",
            BookSnapshot => "bookSnapshot",
            Quote => "quote",
            DerivativeTicker => "derivativeTicker",
            Liquidation => "liquidation",
            OptionSummary => "optionSummary",
            BookTicker => "bookTicker",
            GroupedBookSnapshot => "groupedBookSnapshot",
            TradeBar => "tradeBar",
            Error => "error",
            Disconnect => "disconnect",
        }
    }

    /// What its messages carry as `type`.
    pub fn message_type(self) -> &'static str {
        match self {
            Trade => "trade",
            BookChange => "book_change",
            BookSnapshot | Quote | GroupedBookSnapshot => "book_snapshot",
            DerivativeTicker => "derivative_ticker",
            Liquidation => "liquidation",
            OptionSummary => "option_summary",
            BookTicker => "book_ticker",
            TradeBar => "trade_bar",
            Error => "error",
            Disconnect => "disconnect",
        }
    }

    /// The payload's field in the envelope.
    pub fn field(self) -> u64 {
        match self {
            Error => 150,
            Disconnect => 151,
            _ => 100 + self as u64,
        }
    }

    pub fn is_in(self, included: u32) -> bool {
        included >> self as u32 & 1 == 1
    }
}

/// What a line says besides its payload.
pub struct Line<'a> {
    pub case: Case,
    pub exchange: &'a [u8],
    pub symbol: &'a [u8],
    /// Of computed messages.
    pub name: &'a [u8],
    pub local: &'a [u8],
    pub local_time: Time,
    /// Where in the payload the content is that belongs into the event's id: of computed messages.
    pub content: (usize, usize),
}

/// What a line has turned out to be.
pub enum Found<'a> {
    Line(Line<'a>),
    /// Of a case that nobody wants.
    Excluded,
}

/// Turns lines into payloads; holds what neighbouring lines share.
#[derive(Default)]
pub struct Payloads {
    times: Reader,
    local_times: Reader,
}

/// Cases by the type that lines begin with; snapshots, grouped ones and quotes have the same.
const TYPES: [(&[u8], Case); 10] = [
    (b"book_change\",", BookChange),
    (b"trade\",", Trade),
    (b"book_snapshot\",", BookSnapshot),
    (b"book_ticker\",", BookTicker),
    (b"derivative_ticker\",", DerivativeTicker),
    (b"trade_bar\",", TradeBar),
    (b"option_summary\",", OptionSummary),
    (b"liquidation\",", Liquidation),
    (b"error\",", Error),
    (b"disconnect\",", Disconnect),
];
const SNAPSHOTS: u32 = 1 << BookSnapshot as u32 | 1 << Quote as u32 | 1 << GroupedBookSnapshot as u32;

impl Payloads {
    /// Read a line and write its payload, which is not complete if the line is odd.
    pub fn write<'a>(&mut self, line: &'a [u8], included: u32, out: &mut Vec<u8>) -> Result<Found<'a>, Odd> {
        let mut at = Cursor::new(line);
        at.expect(b"{\"type\":\"")?;
        let (_, case) = TYPES.into_iter().find(|(start, _)| at.skip(start)).ok_or(Odd)?;
        let wanted = if case == BookSnapshot { SNAPSHOTS } else { 1 << case as u32 };
        if included & wanted == 0 {
            return Ok(Found::Excluded);
        }
        if case == Error || case == Disconnect {
            return Err(Odd);
        }
        at.expect(b"\"symbol\":")?;
        let symbol = short(at.string()?)?;
        at.expect(b",\"exchange\":")?;
        let exchange = short(at.string()?)?;
        if case == BookSnapshot
            && included & SNAPSHOTS != SNAPSHOTS
            && is_other_snapshot(at, symbol, exchange, included)
        {
            return Ok(Found::Excluded);
        }
        let at = &mut at;
        let mut name: &[u8] = b"";
        let mut content = (0, 0);
        let mut found = case;
        // Bars end with their own time, all others with the local one.
        let mut local = None;
        match case {
            Trade => self.execution(at, out, [1, 21, 2, 3, 4])?,
            Liquidation => self.execution(at, out, [4, 21, 2, 3, 1])?,
            BookChange => self.book_change(at, out)?,
            BookTicker => self.book_ticker(at, out)?,
            DerivativeTicker => self.derivative_ticker(at, out)?,
            OptionSummary => self.option_summary(at, out)?,
            TradeBar => (name, content, local) = self.trade_bar(at, out)?,
            _ => (found, name, content) = self.book_snapshot(at, out)?,
        }
        let local = match local {
            Some(local) => local,
            None => {
                at.expect(b",\"localTimestamp\":")?;
                at.string()?
            }
        };
        at.expect(b"}")?;
        if !at.is_at_end() {
            return Err(Odd);
        }
        let local_time = since_1970(self.local_times.read(local))?;
        if !found.is_in(included) {
            return Ok(Found::Excluded);
        }
        Ok(Found::Line(Line { case: found, exchange, symbol, name, local, local_time, content }))
    }

    fn time(&mut self, at: &mut Cursor, key: &[u8]) -> Result<Time, Odd> {
        at.expect(key)?;
        since_1970(self.times.read(at.string()?))
    }

    /// Trades and liquidations differ in nothing but the numbers of their fields.
    fn execution(&mut self, at: &mut Cursor, out: &mut Vec<u8>, fields: [u64; 5]) -> Result<(), Odd> {
        let [id_field, id_is_number, price_field, amount_field, side_field] = fields;
        if at.skip(b",\"id\":\"") {
            wire::text(out, id_field, short(at.string_rest()?)?);
        } else if at.skip(b",\"id\":") {
            wire::count(out, id_is_number, 1);
            wire::decimal(out, id_field, &number(at)?)?;
        }
        wire::decimal(out, price_field, &keyed(at, b",\"price\":")?)?;
        wire::decimal(out, amount_field, &keyed(at, b",\"amount\":")?)?;
        let side =
            [(&b",\"side\":\"buy\""[..], 1), (b",\"side\":\"sell\"", 2), (b",\"side\":\"unknown\"", 0)];
        wire::count(out, side_field, choice(at, &side)?);
        let time = self.time(at, b",\"timestamp\":")?;
        wire::time(out, 10, 20, &time);
        Ok(())
    }

    fn book_change(&mut self, at: &mut Cursor, out: &mut Vec<u8>) -> Result<(), Odd> {
        let is_snapshot = choice(at, &[(b",\"isSnapshot\":false", 0), (b",\"isSnapshot\":true", 1)])?;
        // The time comes first in the payload and last in the line: the levels are written behind
        // room for the longest head.
        let start = out.len();
        levels(at, b",\"bids\":[", 22, Holes::Refused, out)?;
        levels(at, b",\"asks\":[", 23, Holes::Refused, out)?;
        let time = self.time(at, b",\"timestamp\":")?;
        let mut head = Vec::with_capacity(32);
        wire::time(&mut head, 10, 20, &time);
        wire::count(&mut head, 21, is_snapshot);
        out.splice(start..start, head);
        Ok(())
    }

    /// Some exchanges' tickers have an order of keys of their own.
    fn book_ticker(&mut self, at: &mut Cursor, out: &mut Vec<u8>) -> Result<(), Odd> {
        const KEYS: [&[u8]; 4] =
            [b",\"bidPrice\":", b",\"bidAmount\":", b",\"askPrice\":", b",\"askAmount\":"];
        let mut numbers = [None; 4];
        while let Some(key) = KEYS.iter().position(|key| at.skip(key)) {
            if numbers[key].replace(number(at)?).is_some() {
                return Err(Odd);
            }
        }
        for (found, field) in numbers.iter().zip(1..) {
            wire::optional_decimal(out, field, found)?;
        }
        let time = self.time(at, b",\"timestamp\":")?;
        wire::time(out, 10, 20, &time);
        Ok(())
    }

    fn derivative_ticker(&mut self, at: &mut Cursor, out: &mut Vec<u8>) -> Result<(), Odd> {
        let last_price = optional(at, b",\"lastPrice\":")?;
        let open_interest = optional(at, b",\"openInterest\":")?;
        let funding_rate = optional(at, b",\"fundingRate\":")?;
        let funding = if at.skip(b",\"fundingTimestamp\":") {
            Some(since_1970(self.times.read(at.string()?))?)
        } else {
            None
        };
        let predicted = optional(at, b",\"predictedFundingRate\":")?;
        let index_price = optional(at, b",\"indexPrice\":")?;
        let mark_price = optional(at, b",\"markPrice\":")?;
        let time = self.time(at, b",\"timestamp\":")?;
        wire::optional_decimal(out, 1, &mark_price)?;
        wire::optional_decimal(out, 2, &index_price)?;
        wire::optional_decimal(out, 3, &funding_rate)?;
        wire::time(out, 10, 20, &time);
        wire::optional_decimal(out, 21, &last_price)?;
        wire::optional_decimal(out, 22, &open_interest)?;
        if let Some(funding) = funding {
            wire::time(out, 23, 24, &funding);
        }
        wire::optional_decimal(out, 25, &predicted)
    }

    fn option_summary(&mut self, at: &mut Cursor, out: &mut Vec<u8>) -> Result<(), Odd> {
        let kind = choice(at, &[(b",\"optionType\":\"put\"", 1), (b",\"optionType\":\"call\"", 2)])?;
        let strike_price = keyed(at, b",\"strikePrice\":")?;
        let expiration = self.time(at, b",\"expirationDate\":")?;
        let bid_price = optional(at, b",\"bestBidPrice\":")?;
        let bid_amount = optional(at, b",\"bestBidAmount\":")?;
        let bid_iv = optional(at, b",\"bestBidIV\":")?;
        let ask_price = optional(at, b",\"bestAskPrice\":")?;
        let ask_amount = optional(at, b",\"bestAskAmount\":")?;
        let ask_iv = optional(at, b",\"bestAskIV\":")?;
        let last_price = optional(at, b",\"lastPrice\":")?;
        let open_interest = optional(at, b",\"openInterest\":")?;
        let mark_price = optional(at, b",\"markPrice\":")?;
        let mark_iv = optional(at, b",\"markIV\":")?;
        let delta = optional(at, b",\"delta\":")?;
        let gamma = optional(at, b",\"gamma\":")?;
        let vega = optional(at, b",\"vega\":")?;
        let theta = optional(at, b",\"theta\":")?;
        let rho = optional(at, b",\"rho\":")?;
        let underlying_price = optional(at, b",\"underlyingPrice\":")?;
        let underlying_index =
            if at.skip(b",\"underlyingIndex\":") { Some(short(at.string()?)?) } else { None };
        let time = self.time(at, b",\"timestamp\":")?;
        for (field, found) in
            [(1, mark_iv), (2, delta), (3, gamma), (4, theta), (5, vega), (6, open_interest)]
        {
            wire::optional_decimal(out, field, &found)?;
        }
        wire::time(out, 10, 20, &time);
        wire::count(out, 21, kind);
        wire::decimal(out, 22, &strike_price)?;
        wire::time(out, 23, 24, &expiration);
        let rest = [
            bid_price,
            bid_amount,
            bid_iv,
            ask_price,
            ask_amount,
            ask_iv,
            last_price,
            mark_price,
            rho,
            underlying_price,
        ];
        for (found, field) in rest.iter().zip(25..) {
            wire::optional_decimal(out, field, found)?;
        }
        if let Some(index) = underlying_index {
            wire::text(out, 35, index);
        }
        Ok(())
    }

    #[allow(clippy::type_complexity, reason = "what a line says of itself, taken apart at once")]
    fn trade_bar<'a>(
        &mut self,
        at: &mut Cursor<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(&'a [u8], (usize, usize), Option<&'a [u8]>), Odd> {
        at.expect(b",\"name\":")?;
        let name = short(at.string()?)?;
        let interval = keyed(at, b",\"interval\":")?;
        let kinds =
            [(&b",\"kind\":\"time\""[..], 2), (b",\"kind\":\"tick\"", 1), (b",\"kind\":\"volume\"", 3)];
        let kind = choice(at, &kinds)?;
        wire::count(out, 1, kind);
        wire::count(out, 2, wire::whole(&interval, MAX_UINT64)?);
        if kind == 2 {
            wire::count(out, 3, wire::whole(&interval, MAX_UINT32)?);
        }
        wire::name(out, 22, name);
        wire::decimal(out, 23, &interval)?;
        let start = out.len();
        let keys: [&[u8]; 5] = [b",\"open\":", b",\"high\":", b",\"low\":", b",\"close\":", b",\"volume\":"];
        for (key, field) in keys.into_iter().zip(4..) {
            wire::decimal(out, field, &keyed(at, key)?)?;
        }
        let buy_volume = keyed(at, b",\"buyVolume\":")?;
        let sell_volume = keyed(at, b",\"sellVolume\":")?;
        wire::count(out, 9, whole_count(at, b",\"trades\":")?);
        let vwap = keyed(at, b",\"vwap\":")?;
        let opened = self.time(at, b",\"openTimestamp\":")?;
        let closed = self.time(at, b",\"closeTimestamp\":")?;
        at.expect(b",\"localTimestamp\":")?;
        let local = at.string()?;
        let ended = self.time(at, b",\"timestamp\":")?;
        wire::time(out, 10, 20, &opened);
        wire::time(out, 11, 21, &closed);
        wire::decimal(out, 24, &buy_volume)?;
        wire::decimal(out, 25, &sell_volume)?;
        wire::decimal(out, 26, &vwap)?;
        wire::time(out, 27, 28, &ended);
        Ok((name, (start, out.len()), Some(local)))
    }

    #[allow(clippy::type_complexity, reason = "what a line says of itself, taken apart at once")]
    fn book_snapshot<'a>(
        &mut self,
        at: &mut Cursor<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(Case, &'a [u8], (usize, usize)), Odd> {
        at.expect(b",\"name\":")?;
        let name = short(at.string()?)?;
        let depth = whole_count(at, b",\"depth\":")?;
        if depth > u64::from(u32::MAX) {
            return Err(Odd);
        }
        let interval = keyed(at, b",\"interval\":")?;
        let grouping = optional(at, b",\"grouping\":")?;
        if name.starts_with(b"quote") {
            let start = out.len();
            self.quote_levels(at, out)?;
            let time = self.time(at, b",\"timestamp\":")?;
            wire::time(out, 10, 20, &time);
            let end = out.len();
            wire::name(out, 21, name);
            wire::decimal(out, 22, &interval)?;
            wire::optional_decimal(out, 23, &grouping)?;
            wire::count(out, 24, depth);
            return Ok((Quote, name, (start, end)));
        }
        wire::count(out, 1, depth);
        let start = out.len();
        levels(at, b",\"bids\":[", 2, Holes::Written, out)?;
        levels(at, b",\"asks\":[", 3, Holes::Written, out)?;
        let time = self.time(at, b",\"timestamp\":")?;
        wire::time(out, 10, 20, &time);
        let end = out.len();
        wire::count(out, 12, wire::whole(&interval, MAX_UINT32)?);
        wire::count(out, 13, 1);
        wire::name(out, 21, name);
        wire::decimal(out, 22, &interval)?;
        let Some(grouping) = grouping else {
            return Ok((BookSnapshot, name, (start, end)));
        };
        wire::count(out, 11, wire::whole(&grouping, MAX_UINT32)?);
        wire::decimal(out, 23, &grouping)?;
        Ok((GroupedBookSnapshot, name, (start, end)))
    }

    fn quote_levels(&mut self, at: &mut Cursor, out: &mut Vec<u8>) -> Result<(), Odd> {
        let start = out.len();
        let mut single = *at;
        if one_level(&mut single, b",\"bids\":[", 1, out).is_ok()
            && one_level(&mut single, b",\"asks\":[", 3, out).is_ok()
        {
            *at = single;
            return Ok(());
        }
        out.truncate(start);
        wire::count(out, 25, 1);
        levels(at, b",\"bids\":[", 26, Holes::Written, out)?;
        levels(at, b",\"asks\":[", 27, Holes::Written, out)
    }
}

fn since_1970(time: Option<Time>) -> Result<Time, Odd> {
    time.filter(|time| time.second >= 0).ok_or(Odd)
}

/// Tell by its beginning that a snapshot is of a case that nobody wants.
fn is_other_snapshot(mut at: Cursor, symbol: &[u8], exchange: &[u8], included: u32) -> bool {
    let plain = |text: &[u8]| text.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let mut case = || -> Result<Case, Odd> {
        at.expect(b",\"name\":")?;
        let name = short(at.string()?)?;
        let depth = keyed(&mut at, b",\"depth\":")?;
        let interval = keyed(&mut at, b",\"interval\":")?;
        let grouped = at.skip(b",\"grouping\":");
        let counts = depth.form.is_short_whole(9) && interval.form.is_short_fixed(15, 9);
        if !counts || ![symbol, exchange, name].into_iter().all(plain) || !(grouped || at.skip(b",\"bids\":"))
        {
            return Err(Odd);
        }
        Ok(match (name.starts_with(b"quote"), grouped) {
            (true, _) => Quote,
            (false, true) => GroupedBookSnapshot,
            (false, false) => BookSnapshot,
        })
    };
    case().is_ok_and(|case| !case.is_in(included))
}

fn short(text: &[u8]) -> Result<&[u8], Odd> {
    if text.len() <= MAX_NAME { Ok(text) } else { Err(Odd) }
}

#[inline]
fn number<'a>(at: &mut Cursor<'a>) -> Result<Number<'a>, Odd> {
    let (text, form) = at.number()?;
    Ok(Number { text, form })
}

#[inline]
fn keyed<'a>(at: &mut Cursor<'a>, key: &[u8]) -> Result<Number<'a>, Odd> {
    at.expect(key)?;
    number(at)
}

#[inline]
fn optional<'a>(at: &mut Cursor<'a>, key: &[u8]) -> Result<Option<Number<'a>>, Odd> {
    if at.skip(key) { Ok(Some(number(at)?)) } else { Ok(None) }
}

fn choice(at: &mut Cursor, choices: &[(&[u8], u64)]) -> Result<u64, Odd> {
    choices.iter().find(|(text, _)| at.skip(text)).map(|(_, value)| *value).ok_or(Odd)
}

/// A whole number that is not negative, written without point and exponent.
fn whole_count(at: &mut Cursor, key: &[u8]) -> Result<u64, Odd> {
    let text = keyed(at, key)?.text;
    let number: i64 = std::str::from_utf8(text).map_err(|_| Odd)?.parse().map_err(|_| Odd)?;
    u64::try_from(number).map_err(|_| Odd)
}

/// What becomes of `{}`, which stands for a level that a snapshot's book does not have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    Written,
    Refused,
}

/// Levels of one side up to the bracket that ends them.
fn levels(at: &mut Cursor, key: &[u8], field: u64, holes: Holes, out: &mut Vec<u8>) -> Result<(), Odd> {
    at.expect(key)?;
    if at.skip(b"]") {
        return Ok(());
    }
    loop {
        wire::tag(out, field);
        let length = out.len();
        out.push(0);
        level(at, 1, holes, out)?;
        wire::close(out, length);
        if !at.skip(b",") {
            return at.expect(b"]");
        }
    }
}

/// The price and amount of one level, in a field and the next one.
#[inline]
fn level(at: &mut Cursor, field: u64, holes: Holes, out: &mut Vec<u8>) -> Result<(), Odd> {
    if at.skip(b"{\"price\":") {
        wire::decimal(out, field, &number(at)?)?;
        wire::decimal(out, field + 1, &keyed(at, b",\"amount\":")?)?;
        return at.expect(b"}");
    }
    if holes == Holes::Refused { Err(Odd) } else { at.expect(b"{}") }
}

fn one_level(at: &mut Cursor, key: &[u8], field: u64, out: &mut Vec<u8>) -> Result<(), Odd> {
    at.expect(key)?;
    level(at, field, Holes::Written, out)?;
    at.expect(b"]")
}
