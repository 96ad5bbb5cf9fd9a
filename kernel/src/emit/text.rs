//! Short texts without an allocation of their own.

use super::out::Sink;

/// As long as a level's text nearly always is.
const LEVEL: usize = 46;

/// A text that seldom is longer than the room it brings.
#[derive(Clone)]
pub enum Text<const INLINE: usize = LEVEL> {
    Short {
        length: u8,
        bytes: [u8; INLINE],
    },
    /// Behind two pointers, so that this one takes no more room than most texts do.
    Long(Box<Box<[u8]>>),
}

impl<const INLINE: usize> Text<INLINE> {
    #[inline]
    pub fn new(text: &[u8]) -> Self {
        if text.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..text.len()].copy_from_slice(text);
            Self::Short { length: text.len() as u8, bytes }
        } else {
            Self::Long(Box::new(text.into()))
        }
    }

    /// The same with a comma behind it.
    #[inline]
    pub fn listed(text: &[u8]) -> Self {
        if text.len() < INLINE {
            let mut bytes = [0; INLINE];
            bytes[..text.len()].copy_from_slice(text);
            bytes[text.len()] = b',';
            Self::Short { length: text.len() as u8 + 1, bytes }
        } else {
            Self::Long(Box::new([text, b","].concat().into()))
        }
    }

    /// Tell whether it is this text with a comma behind it.
    #[inline]
    pub fn is_listed(&self, text: &[u8]) -> bool {
        self.as_bytes().split_last().is_some_and(|(_, rest)| rest == text)
    }

    /// Append it. A copy of a fixed length, cut short, is faster than one of the right length.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Short { length, bytes } => {
                let end = out.len() + usize::from(*length);
                out.extend_from_slice(bytes);
                out.truncate(end);
            }
            Self::Long(bytes) => out.extend_from_slice(bytes),
        }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length).min(INLINE)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Write a JSON string, escaped as Python's json and JavaScript do.
pub fn write_quoted(text: &str, out: &mut impl Sink) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            ..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}
