//! ISO times with three or six fractional digits.

/// The first second that ISO text with four digits of year cannot say.
pub const YEAR_10000: i64 = 253_402_300_800;

/// A time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    pub second: i64,
    pub microsecond: u32,
    pub six_digits: bool,
}

/// Reads times; neighbours share their second, so the last one's is kept.
#[derive(Debug, Default)]
pub struct Reader {
    text: [u8; 20],
    second: i64,
}

impl Reader {
    /// Read `2024-03-01T00:00:00.123Z` or `….123456Z`, from 1970 on; None for anything else.
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
    if year < 1970 || !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let clock = i64::from(hour * 3600 + minute * 60 + second);
    Some(days_before(year, month, day) * 86_400 + clock)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_before(year: i64, month: u32, day: u32) -> i64 {
    // Years that begin in March put the leap day last, so that months have a regular length.
    let year = if month <= 2 { year - 1 } else { year };
    let month = i64::from((month + 9) % 12);
    let of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let mut reader = Reader::default();
        let time = reader.read(b"2024-03-01T00:00:00.123456Z").unwrap();
        assert_eq!((time.second, time.microsecond, time.six_digits), (1_709_251_200, 123_456, true));
        let time = reader.read(b"1970-01-01T00:00:00.000Z").unwrap();
        assert_eq!((time.second, time.microsecond, time.six_digits), (0, 0, false));
        let time = reader.read(b"9999-12-31T23:59:59.999Z").unwrap();
        assert_eq!(time.second, YEAR_10000 - 1);
        for text in [
            &b"1969-12-31T23:59:59.999Z"[..],
            b"2023-02-29T00:00:00.000Z",
            b"2024-13-01T00:00:00.000Z",
            b"2024-03-01T24:00:00.000Z",
            b"2024-03-01T00:00:60.000Z",
            b"2024-03-01T00:00:00.1234Z",
            b"2024-03-01T00:00:00.12xZ",
            b"2024-03-01 00:00:00.123Z",
        ] {
            assert_eq!(reader.read(text), None);
        }
    }
}
