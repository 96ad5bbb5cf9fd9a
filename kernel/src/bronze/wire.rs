//! Fields as Protobuf writes them.

use crate::json::Odd;
use crate::numbers::{self, Form};
use crate::times::Time;

/// A number as it stands in a line.
#[derive(Debug, Clone, Copy)]
pub struct Number<'a> {
    pub text: &'a [u8],
    pub form: Form,
}

const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;
/// `TIME_PRECISION_MICROSECONDS`
const SIX_DIGITS: u64 = 2;

#[inline]
pub fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
pub fn tag(out: &mut Vec<u8>, field: u64) {
    varint(out, field << 3 | LENGTH_DELIMITED);
}

/// A whole number that is 0 where it is not written.
#[inline]
pub fn count(out: &mut Vec<u8>, field: u64, number: u64) {
    if number != 0 {
        varint(out, field << 3 | VARINT);
        varint(out, number);
    }
}

#[inline]
pub fn text(out: &mut Vec<u8>, field: u64, text: &[u8]) {
    tag(out, field);
    varint(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// A text that is not written where it is empty.
#[inline]
pub fn name(out: &mut Vec<u8>, field: u64, name: &[u8]) {
    if !name.is_empty() {
        text(out, field, name);
    }
}

/// A number in plain decimal notation.
#[inline]
pub fn decimal(out: &mut Vec<u8>, field: u64, number: &Number) -> Result<(), Odd> {
    tag(out, field);
    let length = out.len();
    out.push(0);
    numbers::write_decimal(number.text, &number.form, out).map_err(|_| Odd)?;
    close(out, length);
    Ok(())
}

#[inline]
pub fn optional_decimal(out: &mut Vec<u8>, field: u64, number: &Option<Number>) -> Result<(), Odd> {
    match number {
        Some(number) => decimal(out, field, number),
        None => Ok(()),
    }
}

/// Set the length of what follows the byte at `length`; what is longer than a byte can tell moves.
#[inline]
pub fn close(out: &mut Vec<u8>, length: usize) {
    let size = out.len() - length - 1;
    if size < 0x80 {
        out[length] = size as u8;
    } else {
        let mut head = Vec::with_capacity(5);
        varint(&mut head, size as u64);
        out.splice(length..=length, head);
    }
}

/// A Timestamp, and the field beside it that tells six digits from three where it must.
#[inline]
pub fn time(out: &mut Vec<u8>, field: u64, precision_field: u64, time: &Time) {
    tag(out, field);
    let length = out.len();
    out.push(0);
    count(out, 1, time.second as u64);
    count(out, 2, u64::from(time.microsecond) * 1000);
    close(out, length);
    if time.six_digits && time.microsecond % 1000 == 0 {
        count(out, precision_field, SIX_DIGITS);
    }
}

/// A number for the public schema's integer field, or 0 where that has no room for it.
pub fn whole(number: &Number, most: f64) -> Result<u64, Odd> {
    let value = numbers::parse(number.text).map_err(|_| Odd)?;
    let fits = value.fract() == 0.0 && (0.0..=most).contains(&value);
    Ok(if fits { value as u64 } else { 0 })
}
