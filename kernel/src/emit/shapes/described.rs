//! Shapes as exchanges describe them, taken over from the values of `emit/shapes.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use crate::emit::layouts::{self, Key, Layout};
use crate::json::Token;
use crate::keys::Keys;

/// A value that a field is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(Box<[u8]>),
    True,
    False,
}

impl Value {
    fn of(value: &Bound<PyAny>) -> PyResult<Self> {
        if let Ok(flag) = value.cast::<PyBool>() {
            return Ok(if flag.is_true() { Self::True } else { Self::False });
        }
        Ok(Self::Text(value.cast::<PyString>()?.to_str()?.as_bytes().into()))
    }

    fn several(values: &Bound<PyAny>) -> PyResult<Vec<Self>> {
        values.cast::<PyTuple>()?.iter().map(|value| Self::of(&value)).collect()
    }

    #[inline]
    pub fn is(&self, token: &Token) -> bool {
        match (self, token) {
            (Self::Text(text), Token::Text(found)) => **text == **found,
            (Self::True, Token::True) | (Self::False, Token::False) => true,
            _ => false,
        }
    }
}

/// What numbers a message has, by their place in it.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// Also a bid's price and amount.
    Price = 0,
    Amount = 1,
    AskPrice = 2,
    AskAmount = 3,
}

/// The levels of one side.
pub struct Side {
    pub layout: Layout,
    pub is_bids: bool,
    pub priced: bool,
    pub seconds: Option<usize>,
    optional: bool,
}

/// What stands at a key; each kind is described at its namesake in `emit/shapes.py`.
pub enum Field {
    Content(Content),
    Single(Content),
    Rows(Content),
    Symbol { upper: bool, after: Box<[u8]>, until: Box<[u8]> },
    Id { optional: bool },
    NumberId,
    AnyId,
    Number { place: Place, text: Option<bool>, nonzero: bool },
    SignedAmount { text: Option<bool> },
    Side { buy: Value, sell: Value },
    Milliseconds { optional: bool, text: bool, cut: bool },
    Seconds { text: bool },
    Nanoseconds { text: bool, digits: usize },
    Iso { digits: usize },
    Levels(Side),
    BookRows { layout: Layout, symbol: Option<Key>, milliseconds: Option<Key> },
    BookRow(Layout),
    LevelSide { bid: Value, ask: Value },
    LevelText { bid: Box<[u8]>, ask: Box<[u8]> },
    Plain,
    Is(Vec<Value>),
    Unless(Vec<Value>),
    Absent,
    Nonzero,
    Whole,
    LastId,
}

/// An object, or an array that has exactly these items.
pub enum Content {
    Object(Fields),
    Items(Vec<Field>),
}

impl Content {
    pub fn of(fields: &Bound<PyAny>) -> PyResult<Self> {
        Ok(match fields.cast::<PyTuple>() {
            Ok(items) => Self::Items(items.iter().map(|item| Field::of(&item)).collect::<PyResult<_>>()?),
            Err(_) => Self::Object(Fields::of(fields)?),
        })
    }
}

/// An object's keys.
pub struct Fields {
    pub keys: Keys,
    /// What stands at each of them.
    pub fields: Vec<Field>,
    /// Those that must be there, a bit for each.
    pub required: u32,
}

impl Fields {
    fn of(fields: &Bound<PyAny>) -> PyResult<Self> {
        let (mut names, mut found) = (Vec::new(), Vec::new());
        let mut required = 0;
        for (place, (name, field)) in fields.cast::<PyDict>()?.iter().enumerate() {
            names.push(name.extract::<String>()?);
            let field = Field::of(&field)?;
            if place >= 32 {
                return Err(PyValueError::new_err("a shape has at most 32 keys in an object"));
            }
            if !matches!(
                field,
                Field::Unless(_)
                    | Field::Absent
                    | Field::Whole
                    | Field::Plain
                    | Field::Levels(Side { optional: true, .. })
                    | Field::Id { optional: true }
                    | Field::Milliseconds { optional: true, .. }
            ) {
                required |= 1 << place;
            }
            found.push(field);
        }
        Ok(Self { keys: Keys::new(names.iter().map(String::as_str)), fields: found, required })
    }
}

impl Field {
    fn of(field: &Bound<PyAny>) -> PyResult<Self> {
        let kind = field.get_type().name()?;
        let get = |name: &str| field.getattr(name);
        let number = |place| -> PyResult<Self> {
            Ok(Self::Number { place, text: get("text")?.extract()?, nonzero: get("nonzero")?.extract()? })
        };
        let flag = |name: &str| get(name)?.extract::<bool>();
        let text = |name: &str| Ok::<_, PyErr>(get(name)?.extract::<String>()?.into_bytes().into());
        let levels = |is_bids| -> PyResult<Self> {
            Ok(Self::Levels(Side {
                layout: Layout::of(&get("layout")?)?,
                is_bids,
                priced: flag("priced")?,
                seconds: get("seconds")?.extract()?,
                optional: flag("optional")?,
            }))
        };
        Ok(match kind.to_str()? {
            "Object" | "Items" => Self::Content(Content::of(&get("fields")?)?),
            "Single" => Self::Single(Content::of(&get("fields")?)?),
            "Rows" => Self::Rows(Content::of(&get("fields")?)?),
            "Symbol" => Self::Symbol { upper: flag("upper")?, after: text("after")?, until: text("until")? },
            "TextId" => Self::Id { optional: get("optional")?.extract()? },
            "NumberId" => Self::NumberId,
            "AnyId" => Self::AnyId,
            "Price" | "BidPrice" => number(Place::Price)?,
            "Amount" | "BidAmount" => number(Place::Amount)?,
            "AskPrice" => number(Place::AskPrice)?,
            "AskAmount" => number(Place::AskAmount)?,
            "TakerSide" => Self::Side { buy: Value::of(&get("buy")?)?, sell: Value::of(&get("sell")?)? },
            "SignedAmount" => Self::SignedAmount { text: get("text")?.extract()? },
            "Milliseconds" => {
                Self::Milliseconds { optional: flag("optional")?, text: flag("text")?, cut: flag("cut")? }
            }
            "Seconds" => Self::Seconds { text: flag("text")? },
            "Nanoseconds" => Self::Nanoseconds { text: flag("text")?, digits: get("digits")?.extract()? },
            "Iso" => Self::Iso { digits: get("digits")?.extract()? },
            "Bids" => levels(true)?,
            "Asks" => levels(false)?,
            "BookRows" => {
                let key = |name| layouts::key(field, name);
                let (symbol, milliseconds) = (key("symbol")?, key("milliseconds")?);
                Self::BookRows { layout: Layout::of(&get("layout")?)?, symbol, milliseconds }
            }
            "BookRow" => Self::BookRow(Layout::of(&get("layout")?)?),
            "LevelSide" => Self::LevelSide { bid: Value::of(&get("bid")?)?, ask: Value::of(&get("ask")?)? },
            "LevelText" => Self::LevelText { bid: text("bid")?, ask: text("ask")? },
            "Plain" => Self::Plain,
            "Is" => Self::Is(Value::several(&get("values")?)?),
            "Unless" => Self::Unless(Value::several(&get("values")?)?),
            "Absent" => Self::Absent,
            "Nonzero" => Self::Nonzero,
            "Whole" => Self::Whole,
            "LastId" => Self::LastId,
            other => return Err(PyValueError::new_err(format!("no such field of a shape: {other}"))),
        })
    }
}

/// What a line of a shape becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emits {
    Trade,
    /// Where `filled`, lines without levels are left to the mapper.
    Book {
        is_snapshot: bool,
        filled: bool,
    },
    BookTicker,
}

/// A described message.
pub enum Shape {
    Fields {
        emits: Emits,
        content: Content,
    },
    /// A keyed table, whose layout is description enough.
    Table(usize),
}
