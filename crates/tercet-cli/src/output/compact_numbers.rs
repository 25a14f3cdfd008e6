//! JSON with one element a line, except arrays of numbers, which are one line.

use std::io::{self, Write};

use serde_json::ser::{CharEscape, Formatter, PrettyFormatter};

/// Formats JSON as [`PrettyFormatter`] does, but an array of numbers in one line, such as a vector.
#[derive(Default)]
pub struct CompactNumberFormatter {
    pretty: PrettyFormatter<'static>,
    /// An element of an array whose kind is not known yet: whether it is the first.
    pending: Option<bool>,
    /// Whether the last array has only numbers so far.
    is_flat: bool,
}

impl CompactNumberFormatter {
    /// Separates a value from the one before, if it is an element of an array.
    fn separate<W: ?Sized + Write>(&mut self, writer: &mut W, is_number: bool) -> io::Result<()> {
        match (self.pending.take(), is_number) {
            (None, _) => Ok(()),
            (Some(true), true) => {
                self.is_flat = true;
                Ok(())
            }
            (Some(false), true) if self.is_flat => writer.write_all(b", "),
            (Some(first), _) => {
                self.is_flat = false;
                self.pretty.begin_array_value(writer, first)
            }
        }
    }
}

/// Methods that write a number.
macro_rules! numbers {
    ($($name:ident: $number:ty),* $(,)?) => {
        $(fn $name<W: ?Sized + Write>(&mut self, writer: &mut W, value: $number) -> io::Result<()> {
            self.separate(writer, true)?;
            self.pretty.$name(writer, value)
        })*
    };
}

impl Formatter for CompactNumberFormatter {
    numbers! {
        write_i8: i8, write_i16: i16, write_i32: i32, write_i64: i64, write_i128: i128,
        write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_u128: u128,
        write_f32: f32, write_f64: f64, write_number_str: &str,
    }

    fn write_null<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        // Numbers that JSON does not have are null.
        let is_flat = self.is_flat;
        self.separate(writer, is_flat)?;
        self.pretty.write_null(writer)
    }

    fn write_bool<W: ?Sized + Write>(&mut self, writer: &mut W, value: bool) -> io::Result<()> {
        self.separate(writer, false)?;
        self.pretty.write_bool(writer, value)
    }

    fn begin_string<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.separate(writer, false)?;
        self.pretty.begin_string(writer)
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.pretty.write_char_escape(writer, escape)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.separate(writer, false)?;
        self.is_flat = false;
        self.pretty.begin_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, _: &mut W, first: bool) -> io::Result<()> {
        self.pending = Some(first);
        Ok(())
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_array_value(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if !std::mem::take(&mut self.is_flat) {
            return self.pretty.end_array(writer);
        }
        // The formatter ends an array in the line of its beginning if it saw no value.
        let mut discarded = Vec::new();
        self.pretty.end_array(&mut discarded)?;
        writer.write_all(b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.separate(writer, false)?;
        self.is_flat = false;
        self.pretty.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.pretty.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.is_flat = false;
        self.pretty.end_object_value(writer)
    }
}
