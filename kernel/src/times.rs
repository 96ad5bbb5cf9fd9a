//! ISO times with three or six fractional digits.

/// The first second that ISO text with four digits of year cannot say.
pub const YEAR_10000: i64 = 253_402_300_800;

/// A time, from the year 1 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    pub second: i64,
    pub microsecond: u32,
    pub six_digits: bool,
}

impl Time {
    /// Milliseconds since 1970, cut like a JavaScript Date.
    pub fn milliseconds(&self) -> i64 {
        self.second * 1000 + i64::from(self.microsecond / 1000)
    }
}

/// Reads times; neighbours share their second, so the last one's is kept.
#[derive(Debug, Default)]
pub struct Reader {
    text: [u8; 20],
    second: i64,
}

impl Reader {
    /// Read `2024-03-01T00:00:00.123Z` or `….123456Z`; None for anything else.
    #[inline]
    pub fn read(&mut self, text: &[u8]) -> Option<Time> {
        let six_digits = match text.len() {
            24 => false,
            27 => true,
            _ => return None,
        };
        if text[text.len() - 1] != b'Z' {
            return None;
        }
        if self.text != text[..20] {
            self.second = second_of(&text[..20])?;
            self.text.copy_from_slice(&text[..20]);
        }
        let fraction = number(&text[20..text.len() - 1])?;
        let microsecond = if six_digits { fraction } else { fraction * 1000 };
        Some(Time { second: self.second, microsecond, six_digits })
    }
}

/// A time as it is printed, and its milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Printed {
    bytes: [u8; 27],
    length: u8,
    pub ms: i64,
}

impl Printed {
    /// Take over text that has been read.
    #[inline]
    pub fn of_text(text: &[u8], time: &Time) -> Self {
        let mut bytes = [0; 27];
        // Nearly always so long: a copy of known length takes no call.
        match <&[u8; 24]>::try_from(text) {
            Ok(text) => bytes[..24].copy_from_slice(text),
            Err(_) => bytes[..text.len()].copy_from_slice(text),
        }
        Self { bytes, length: text.len() as u8, ms: time.milliseconds() }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Prints times; neighbours share their second, so the last one's text is kept.
#[derive(Debug)]
pub struct Printer {
    second: i64,
    text: [u8; 20],
}

impl Default for Printer {
    fn default() -> Self {
        Self { second: 0, text: *b"1970-01-01T00:00:00." }
    }
}

impl Printer {
    /// Print milliseconds since 1970 with three digits; None before that and after the year 9999.
    #[inline]
    pub fn milliseconds(&mut self, ms: i64) -> Option<Printed> {
        if ms <= 0 {
            return None;
        }
        let mut printed = self.printed(ms / 1000, ms)?;
        write_digits(&mut printed.bytes[20..23], ms % 1000);
        printed.bytes[23] = b'Z';
        printed.length = 24;
        Some(printed)
    }

    /// Print microseconds since 1970 with six digits.
    pub fn microseconds(&mut self, us: i64) -> Option<Printed> {
        if us <= 0 {
            return None;
        }
        let mut printed = self.printed(us / 1_000_000, us / 1000)?;
        write_digits(&mut printed.bytes[20..26], us % 1_000_000);
        printed.bytes[26] = b'Z';
        printed.length = 27;
        Some(printed)
    }

    #[inline]
    fn printed(&mut self, second: i64, ms: i64) -> Option<Printed> {
        if second != self.second {
            if second >= YEAR_10000 {
                return None;
            }
            self.text = second_text(second);
            self.second = second;
        }
        let mut bytes = [0; 27];
        bytes[..20].copy_from_slice(&self.text);
        Some(Printed { bytes, length: 0, ms })
    }
}

fn second_text(second: i64) -> [u8; 20] {
    let (days, clock) = (second / 86_400, second % 86_400);
    // Days of years that begin in March, counted from the year 0, in eras of 400 years.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.";
    for (start, end, value) in [
        (0, 4, year),
        (5, 7, month),
        (8, 10, day),
        (11, 13, clock / 3600),
        (14, 16, clock / 60 % 60),
        (17, 19, clock % 60),
    ] {
        write_digits(&mut text[start..end], value);
    }
    text
}

#[inline]
fn write_digits(out: &mut [u8], mut number: i64) {
    for place in out.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[inline]
fn number(digits: &[u8]) -> Option<u32> {
    let mut number = 0;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u32::from(byte - b'0');
    }
    Some(number)
}

fn second_of(text: &[u8]) -> Option<i64> {
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.')];
    if marks.iter().any(|(at, mark)| text[*at] != *mark) {
        return None;
    }
    let year = i64::from(number(&text[..4])?);
    let month = number(&text[5..7])?;
    let day = number(&text[8..10])?;
    let hour = number(&text[11..13])?;
    let minute = number(&text[14..16])?;
    let second = number(&text[17..19])?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    if year < 1 || !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let clock = i64::from(hour * 3600 + minute * 60 + second);
    Some(days_before(year, month, day) * 86_400 + clock)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_before(year: i64, month: u32, day: u32) -> i64 {
    // A whole number of eras keeps years before 1970 from rounding up.
    let year = year + 400;
    // Years that begin in March put the leap day last, so that months have a regular length.
    let year = if month <= 2 { year - 1 } else { year };
    let month = i64::from((month + 9) % 12);
    let of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468 - 146_097
}
