//! Trade bars by time, trades or volume.

use super::levels::Refused;
use super::out::Sink;
use super::text::Text;
use crate::numbers::write_float;
use crate::times::{Printed, Printer};

/// What JavaScript's safe integers end with: highs and lows start from there.
const SAFE_MAX: f64 = 9_007_199_254_740_991.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Time,
    Tick,
    Volume,
}

/// A computed type that was asked for.
pub struct BarType {
    /// Name, interval and kind as its messages print them, up to the first price.
    pub head: Vec<u8>,
    pub kind: Kind,
    pub interval: f64,
}

/// A trade as bars see it.
pub struct Trade<'a> {
    pub price: f64,
    pub amount: f64,
    pub side: &'a [u8],
    pub price_text: &'a [u8],
    pub time: &'a Printed,
}

/// The bar in progress of one symbol.
pub struct Bar {
    trades: u64,
    open: Text,
    close: Text,
    open_time: Text,
    close_time: Text,
    close_ms: i64,
    bucket: f64,
    high: f64,
    low: f64,
    volume: f64,
    buy: f64,
    sell: f64,
    vwap: f64,
}

impl Default for Bar {
    fn default() -> Self {
        let nothing = Text::new(b"");
        Self {
            trades: 0,
            open: nothing.clone(),
            close: nothing.clone(),
            open_time: nothing.clone(),
            close_time: nothing,
            close_ms: 0,
            bucket: 0.0,
            high: -SAFE_MAX,
            low: SAFE_MAX,
            volume: 0.0,
            buy: 0.0,
            sell: 0.0,
            vwap: 0.0,
        }
    }
}

impl Bar {
    /// The end of a time bar that this trade completes; refused if it cannot be printed.
    pub fn ends_before(
        &self,
        kind: &BarType,
        ms: i64,
        printer: &mut Printer,
    ) -> Result<Option<Printed>, Refused> {
        let later = kind.kind == Kind::Time && (ms as f64 / kind.interval).floor() > self.bucket;
        if later { self.end(kind, printer) } else { Ok(None) }
    }

    /// The end of a time bar that has trades.
    pub fn end(&self, kind: &BarType, printer: &mut Printer) -> Result<Option<Printed>, Refused> {
        if kind.kind != Kind::Time || self.trades == 0 {
            return Ok(None);
        }
        let end = (self.bucket + 1.0) * kind.interval;
        let refused = || Refused(format!("not a time in milliseconds since 1970: {end}"));
        printer.milliseconds(end as i64).map(Some).ok_or_else(refused)
    }

    /// Take a trade; true if the bar is complete with it.
    pub fn add(&mut self, kind: &BarType, trade: &Trade) -> bool {
        let ms = trade.time.ms;
        if self.trades == 0 {
            if kind.kind == Kind::Time {
                self.bucket = (ms as f64 / kind.interval).floor();
            }
            self.open = Text::new(trade.price_text);
            self.open_time = Text::new(trade.time.as_bytes());
        }
        self.high = self.high.max(trade.price);
        self.low = self.low.min(trade.price);
        if self.trades == 0 || ms >= self.close_ms {
            self.close = Text::new(trade.price_text);
            self.close_time = Text::new(trade.time.as_bytes());
            self.close_ms = ms;
        }
        match trade.side {
            b"buy" => self.buy += trade.amount,
            b"sell" => self.sell += trade.amount,
            _ => {}
        }
        self.trades += 1;
        let volume = self.volume + trade.amount;
        // Zero volume makes the average undefined for the rest of the bar, as a NaN does in Node.
        self.vwap = if volume == 0.0 {
            f64::NAN
        } else {
            (self.vwap * self.volume + trade.price * trade.amount) / volume
        };
        self.volume = volume;
        match kind.kind {
            Kind::Time => false,
            Kind::Tick => self.trades as f64 >= kind.interval,
            Kind::Volume => self.volume >= kind.interval,
        }
    }

    /// The time of its last trade.
    pub fn close_time(&self) -> Text {
        self.close_time.clone()
    }

    /// Write it, and begin anew.
    pub fn finish(&mut self, kind: &BarType, whose: &[u8], time: &[u8], local: &[u8], out: &mut impl Sink) {
        let bar = std::mem::take(self);
        out.extend_from_slice(b"{\"type\":\"trade_bar\",\"symbol\":");
        out.extend_from_slice(whose);
        out.extend_from_slice(&kind.head);
        out.extend_from_slice(bar.open.as_bytes());
        number(b",\"high\":", bar.high, out);
        number(b",\"low\":", bar.low, out);
        out.extend_from_slice(b",\"close\":");
        out.extend_from_slice(bar.close.as_bytes());
        number(b",\"volume\":", bar.volume, out);
        number(b",\"buyVolume\":", bar.buy, out);
        number(b",\"sellVolume\":", bar.sell, out);
        out.extend_from_slice(format!(",\"trades\":{}", bar.trades).as_bytes());
        number(b",\"vwap\":", bar.vwap, out);
        for (key, text) in [
            (&b",\"openTimestamp\":\""[..], bar.open_time.as_bytes()),
            (b"\",\"closeTimestamp\":\"", bar.close_time.as_bytes()),
            (b"\",\"localTimestamp\":\"", local),
            (b"\",\"timestamp\":\"", time),
        ] {
            out.extend_from_slice(key);
            out.extend_from_slice(text);
        }
        out.extend_from_slice(b"\"}\n");
    }
}

fn number(key: &[u8], number: f64, out: &mut impl Sink) {
    out.extend_from_slice(key);
    if write_float(number, out).is_err() {
        out.extend_from_slice(b"null");
    }
}
