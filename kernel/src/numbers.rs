//! Number text exactly as JavaScript prints it, and in plain decimal notation.

use crate::emit::Sink;

/// Text that is not a finite number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotANumber;

/// A double keeps every decimal number of up to 15 digits: their text need not go through one.
const EXACT_DIGITS: u32 = 15;

/// What the text of a number consists of. It is passed on often, so it is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Digits of the whole part.
    whole: u32,
    /// Digits behind the point; none if there is no point.
    fraction: u32,
    end: u32,
    has_sign: bool,
    has_point: bool,
    has_exponent: bool,
}

/// Scan a JSON number at the start of `text`; what follows it is not looked at.
#[inline]
pub fn scan(text: &[u8]) -> Option<Form> {
    Number::scan(text).map(|number| number.form)
}

#[inline(never)]
fn scan_any(text: &[u8]) -> Option<Form> {
    let sign = usize::from(text.first() == Some(&b'-'));
    let mut at = sign;
    let whole = digits(&text[at..]);
    if whole == 0 || (whole > 1 && text[at] == b'0') {
        return None;
    }
    at += whole;
    let mut fraction = 0;
    let has_point = text.get(at) == Some(&b'.');
    if has_point {
        fraction = digits(&text[at + 1..]);
        if fraction == 0 {
            return None;
        }
        at += 1 + fraction;
    }
    let has_exponent = matches!(text.get(at), Some(b'e' | b'E'));
    if has_exponent {
        at += 1;
        if matches!(text.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        let exponent = digits(&text[at..]);
        if exponent == 0 {
            return None;
        }
        at += exponent;
    }
    let end = u32::try_from(at).ok()?;
    let (whole, fraction) = (whole as u32, fraction as u32);
    Some(Form { whole, fraction, end, has_sign: sign == 1, has_point, has_exponent })
}

#[inline]
fn digits(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut length = 0;
    for chunk in text.chunks_exact(8) {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default()) ^ (ONES * b'0' as u64);
        // Digits are 0 to 9 now: with this added, all others have the highest bit.
        let others = (((word & (ONES * 0x7f)) + ONES * (0x80 - 10)) | word) & (ONES * 0x80);
        if others != 0 {
            return length + others.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    let rest = &text[length..];
    length + rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
}

/// A number without sign and exponent, and so short that it is looked at as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short<'a> {
    /// The text, and what happens to follow it.
    text: &'a [u8; SHORT],
    /// Digits of the whole part.
    whole: u32,
    end: u32,
    /// A bit for each byte that is not a 0.
    nonzeros: u32,
}

const SHORT: usize = 16;

/// See whether a short JSON number stands at the start of `text`. What is none may still be a number.
#[inline]
pub fn short(text: &[u8]) -> Option<Short<'_>> {
    let text = text.first_chunk::<SHORT>()?;
    let word = u128::from_le_bytes(*text);
    let (low, high) = (classes(word as u64), classes((word >> 64) as u64));
    let (others, nonzeros) = (low.0 | high.0 << 8, low.1 | high.1 << 8);
    let whole = others.trailing_zeros();
    if whole == 0 || whole >= SHORT as u32 || (nonzeros & 1 == 0 && whole > 1) {
        return None;
    }
    let mut end = whole;
    if text[whole as usize] == b'.' {
        end = (others & (others - 1)).trailing_zeros();
        if end >= SHORT as u32 || end == whole + 1 {
            return None;
        }
    }
    let has_exponent = matches!(text[end as usize], b'e' | b'E');
    (!has_exponent).then_some(Short { text, whole, end, nonzeros })
}

/// A bit for each of eight bytes that is no digit, and for each that is not 0.
#[inline]
fn classes(eight: u64) -> (u32, u32) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = eight ^ (ONES * b'0' as u64);
    let (low, high) = (word & (ONES * 0x7f), word & (ONES * 0x80));
    // The highest bit of each byte, gathered in the highest byte.
    let gathered = |word: u64| (((word >> 7) & ONES).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32;
    // Digits are 0 to 9 now: with this added, all others have the highest bit.
    (gathered((low + ONES * (0x80 - 10)) | high), gathered((low + ONES * 0x7f) | high))
}

impl Short<'_> {
    /// Where the number ends.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    #[inline]
    fn form(&self) -> Form {
        let has_point = self.end > self.whole;
        let fraction = self.end - self.whole - u32::from(has_point);
        Form { whole: self.whole, fraction, end: self.end, has_sign: false, has_point, has_exponent: false }
    }

    /// Print it as JavaScript does.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), NotANumber> {
        let mut printed = self.end;
        if self.end > self.whole {
            // Up to the last digit that is not 0; the point, which is none, ends the search.
            printed = u32::BITS - (self.nonzeros & ((1 << self.end) - 1)).leading_zeros();
            if printed == self.whole + 1 {
                printed = self.whole;
            } else if printed > self.whole + 7 && self.nonzeros & 0b1111_1101 == 0 {
                return write_float(parse(&self.text[..self.end()])?, out);
            }
        }
        copy_short(self.text, printed as usize, out);
        Ok(())
    }
}

/// Append the beginning of a text. Always as much is copied: that takes no call.
#[inline]
fn copy_short(text: &[u8; SHORT], length: usize, out: &mut Vec<u8>) {
    let end = out.len() + length;
    out.extend_from_slice(text);
    out.truncate(end);
}

/// A JSON number that has been scanned.
#[derive(Debug, Clone, Copy)]
pub struct Number<'a> {
    /// The text, and what happens to follow it.
    ahead: &'a [u8],
    pub form: Form,
}

impl<'a> Number<'a> {
    pub const ZERO: Self = Self { ahead: b"0", form: Form::ZERO };

    /// See whether a number stands at the start of `ahead`.
    #[inline(always)]
    pub fn scan(ahead: &'a [u8]) -> Option<Self> {
        let form = match short(ahead) {
            Some(number) => number.form(),
            None => scan_any(ahead)?,
        };
        Some(Self { ahead, form })
    }

    #[inline]
    pub fn text(&self) -> &'a [u8] {
        &self.ahead[..self.form.end()]
    }

    /// Print it as JavaScript does.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), NotANumber> {
        let Some(printed) = self.form.plain_end(self.ahead) else {
            return write_float(parse(self.text())?, out);
        };
        match self.ahead.first_chunk::<SHORT>() {
            Some(text) if printed <= SHORT => copy_short(text, printed, out),
            _ => out.extend_from_slice(&self.ahead[..printed]),
        }
        Ok(())
    }
}

/// Read digits, up to 19 of them, eight at a time: neighbours are put together to numbers of two, four and eight.
#[inline]
pub fn whole(digits: &[u8]) -> u64 {
    let mut number: u64 = 0;
    let mut eights = digits.chunks_exact(8);
    for eight in &mut eights {
        let ones = u64::from_le_bytes(eight.try_into().unwrap_or_default()) ^ 0x3030_3030_3030_3030;
        let twos = (ones * 10 + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
        let fours = (twos * 100 + (twos >> 16)) & 0x0000_ffff_0000_ffff;
        number = number * 100_000_000 + ((fours * 10_000 + (fours >> 32)) & 0xffff_ffff);
    }
    eights.remainder().iter().fold(number, |number, digit| number * 10 + u64::from(digit - b'0'))
}

impl Form {
    /// That of `0`.
    pub const ZERO: Self =
        Self { whole: 1, fraction: 0, end: 1, has_sign: false, has_point: false, has_exponent: false };

    /// Where the number ends.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// Tell whether it may be beyond what a double holds.
    pub fn may_be_infinite(&self) -> bool {
        self.has_exponent || self.whole > 300
    }

    /// Tell whether it is a count of at most so many digits.
    #[inline]
    pub fn is_short_whole(&self, digits: u32) -> bool {
        !self.has_point && self.is_short_fixed(digits, 0)
    }

    /// Tell whether it has no sign, no exponent, and at most so many digits before and behind its
    /// point.
    #[inline]
    pub fn is_short_fixed(&self, whole: u32, fraction: u32) -> bool {
        !self.has_exponent && !self.has_sign && self.whole <= whole && self.fraction <= fraction
    }

    /// The length of the text without the zeros that end it, if it is then canonical as it stands:
    /// short enough for a double to keep, and with no exponent, in the text or in JavaScript's.
    #[inline]
    fn plain_end(&self, text: &[u8]) -> Option<usize> {
        if self.has_exponent || self.whole + self.fraction > EXACT_DIGITS {
            return None;
        }
        if !self.has_point {
            // -0 prints as 0.
            return (!self.has_sign || text[1] != b'0').then_some(self.end());
        }
        let start = usize::from(self.has_sign);
        let point = start + self.whole as usize;
        let mut end = self.end();
        while text[end - 1] == b'0' {
            end -= 1;
        }
        if end == point + 1 {
            return (!self.has_sign || text[1] != b'0').then_some(point);
        }
        let tiny = self.whole == 1 && text[start] == b'0' && text[point + 1..end].starts_with(b"000000");
        (!tiny).then_some(end)
    }
}

/// Print a double as JavaScript does.
pub fn write_float(number: f64, out: &mut impl Sink) -> Result<(), NotANumber> {
    if !number.is_finite() {
        return Err(NotANumber);
    }
    out.extend_from_slice(ryu_js::Buffer::new().format_finite(number).as_bytes());
    Ok(())
}

/// Print a JSON number, already scanned, as JavaScript does.
#[inline]
pub fn write_scanned(text: &[u8], form: &Form, out: &mut impl Sink) -> Result<(), NotANumber> {
    if let Some(end) = form.plain_end(text) {
        out.extend_from_slice(&text[..end]);
        return Ok(());
    }
    write_float(parse(&text[..form.end()])?, out)
}

/// Print the text of a number, whatever form it has, as JavaScript does.
pub fn write_text(text: &[u8], out: &mut impl Sink) -> Result<(), NotANumber> {
    match scan(text) {
        Some(form) if form.end() == text.len() => write_scanned(text, &form, out),
        _ => write_float(parse(text)?, out),
    }
}

/// Print a scanned JSON number in plain decimal notation, as short as reads back to the same.
#[inline]
pub fn write_decimal(text: &[u8], form: &Form, out: &mut Vec<u8>) -> Result<(), NotANumber> {
    if let Some(end) = form.plain_end(text) {
        out.extend_from_slice(&text[..end]);
        return Ok(());
    }
    let start = out.len();
    write_float(parse(&text[..form.end()])?, out)?;
    if let Some(at) = out[start..].iter().position(|byte| *byte == b'e') {
        let printed = out.split_off(start);
        write_without_exponent(&printed[..at], &printed[at + 1..], out)?;
    }
    Ok(())
}

/// Move the point to where an exponent says.
fn write_without_exponent(mantissa: &[u8], exponent: &[u8], out: &mut Vec<u8>) -> Result<(), NotANumber> {
    let power: i32 = ascii(exponent)?.parse().map_err(|_| NotANumber)?;
    let (sign, mantissa) = match mantissa.strip_prefix(b"-") {
        Some(rest) => (&b"-"[..], rest),
        None => (&b""[..], mantissa),
    };
    let digits: Vec<u8> = mantissa.iter().copied().filter(|byte| *byte != b'.').collect();
    // The number is d.ddd times ten to the power.
    let point = usize::try_from(power.unsigned_abs()).map_err(|_| NotANumber)?;
    out.extend_from_slice(sign);
    if power < 0 {
        out.extend_from_slice(b"0.");
        out.resize(out.len() + point - 1, b'0');
        out.extend_from_slice(&digits);
    } else {
        // JavaScript prints an exponent from 1e21 on, and a double has at most 17 digits.
        out.extend_from_slice(&digits);
        out.resize(out.len() + point + 1 - digits.len().min(point + 1), b'0');
    }
    Ok(())
}

const POWERS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Read canonical text. Up to 15 digits make two doubles that are exact, hence so is their quotient.
#[inline]
pub fn value(text: &[u8]) -> Result<f64, NotANumber> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > EXACT_DIGITS as usize {
        return parse(text);
    }
    let mut number: u64 = 0;
    let mut decimals = 0;
    let mut seen_point = 0;
    for byte in digits {
        match byte {
            b'0'..=b'9' => {
                number = number * 10 + u64::from(byte - b'0');
                decimals += seen_point;
            }
            b'.' if seen_point == 0 => seen_point = 1,
            _ => return parse(text),
        }
    }
    let number = number as f64 / POWERS[decimals];
    Ok(if negative { -number } else { number })
}

/// Read the text of a number: what Python's float takes, but for names, blanks and underscores.
pub fn parse(text: &[u8]) -> Result<f64, NotANumber> {
    // Rust would also read "inf" and "nan".
    if !text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E')) {
        return Err(NotANumber);
    }
    let number: f64 = ascii(text)?.parse().map_err(|_| NotANumber)?;
    if number.is_finite() { Ok(number) } else { Err(NotANumber) }
}

fn ascii(text: &[u8]) -> Result<&str, NotANumber> {
    std::str::from_utf8(text).map_err(|_| NotANumber)
}
