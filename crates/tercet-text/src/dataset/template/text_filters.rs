//! Filters of texts and of single numbers.

use super::eval::{TemplateCallArgs, TemplateEvaluator};
use super::spoken::{TemplateText, TemplateTextBuilder};
use super::{TemplateError, TemplateValue, clip};

/// Maximum width of a formatted value.
const MAX_WIDTH: usize = 10_000;

impl TemplateEvaluator<'_> {
    /// A filter of texts or numbers.
    pub(super) fn text_filter(
        &mut self,
        name: &str,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        match name {
            "escape" | "e" | "forceescape" => self.escape(name, value, args),
            "striptags" => self.strip_tags(value, args),
            "truncate" => self.truncate(value, args),
            "center" => self.center(value, args),
            "wordcount" => self.word_count(value, args),
            "urlencode" => self.url_encode(value, args),
            "format" => self.format(value, args),
            "round" => self.round(value, args),
            _ => Err(self.unsupported(format!("the filter `{}`", clip(name)))),
        }
    }

    fn escape(
        &mut self,
        name: &str,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.bind_args(name, args, &[])?;
        let text = self.text_of(value)?;
        self.reserve_bytes(5 * text.len())?;
        let mut out = TemplateTextBuilder::default();
        let mut start = 0;
        for (at, c) in text.char_indices() {
            let escaped = match c {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '\'' => "&#39;",
                '"' => "&#34;",
                _ => continue,
            };
            out.push_part(&text, start..at);
            out.push_str(escaped, text.is_literal_at(at));
            start = at + c.len_utf8();
        }
        out.push_part(&text, start..text.len());
        self.made(out.finish())
    }

    /// The text without comments, tags and repeated spaces, with its entities decoded.
    fn strip_tags(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.bind_args("striptags", args, &[])?;
        let text = self.text_of(value)?;
        self.reserve_bytes(4 * text.len())?;
        let mut plain = text.to_string();
        for (open, close) in [("<!--", "-->"), ("<", ">")] {
            let mut kept = String::with_capacity(plain.len());
            let mut rest = &*plain;
            while let Some(start) = rest.find(open) {
                let Some(len) = rest[start..].find(close) else {
                    break;
                };
                kept.push_str(&rest[..start]);
                rest = &rest[start + len + close.len()..];
            }
            kept.push_str(rest);
            plain = kept;
        }
        let words: Vec<&str> = plain.split_whitespace().collect();
        let mut plain = words.join(" ");
        for (entity, c) in [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#34;", "\""),
            ("&#39;", "'"),
            ("&nbsp;", "\u{a0}"),
            ("&amp;", "&"),
        ] {
            plain = plain.replace(entity, c);
        }
        self.made(text.mapped(&plain))
    }

    fn truncate(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let names = ["length", "killwords", "end", "leeway"];
        let given = self.bind_args("truncate", args, &names)?;
        let size = |at: usize, default: usize| match &given[at] {
            None | Some(TemplateValue::None) => Some(default),
            Some(value) => value.as_int().and_then(|x| usize::try_from(x).ok()),
        };
        let (Some(len), Some(leeway)) = (size(0, 255), size(3, 5)) else {
            return Err(self.fail("`truncate` takes lengths from 0 on"));
        };
        let end = match &given[2] {
            None => TemplateText::new("..."),
            Some(end) => self.text_of(end)?,
        };
        let text = self.text_of(value)?;
        self.scan(text.len())?;
        let Some(kept) = len.checked_sub(end.chars().count()) else {
            return Err(self.fail("`truncate` to less than its end"));
        };
        if text.chars().count() <= len.saturating_add(leeway) {
            return Ok(TemplateValue::Text(text));
        }
        let cut = text
            .char_indices()
            .nth(kept)
            .map_or(text.len(), |(at, _)| at);
        let cut = match given[1].as_ref().is_some_and(TemplateValue::is_true) {
            true => cut,
            false => text[..cut].rfind(' ').unwrap_or(cut),
        };
        let mut out = TemplateTextBuilder::default();
        out.push_part(&text, 0..cut);
        out.push(&end);
        self.made(out.finish())
    }

    fn center(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("center", args, &["width"])?;
        let width = given[0].as_ref().map_or(Some(80), TemplateValue::as_int);
        let Some(width) = width.filter(|width| *width <= MAX_WIDTH as i64) else {
            return Err(self.fail(format!("`center` takes a width of at most {MAX_WIDTH}")));
        };
        let text = self.text_of(value)?;
        let width = usize::try_from(width).unwrap_or(0);
        let pad = width.saturating_sub(text.chars().count());
        self.reserve_bytes(pad)?;
        // Python puts the odd space to the left in fields of odd width.
        let left = pad / 2 + (pad & width & 1);
        let mut out = TemplateTextBuilder::default();
        out.push_str(&" ".repeat(left), false);
        out.push(&text);
        out.push_str(&" ".repeat(pad - left), false);
        self.made(out.finish())
    }

    fn word_count(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.bind_args("wordcount", args, &[])?;
        let text = self.text_of(value)?;
        self.scan(text.len())?;
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let count = words.filter(|word| !word.is_empty()).count();
        Ok(TemplateValue::Int(count as i64))
    }

    fn url_encode(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.bind_args("urlencode", args, &[])?;
        let pairs = match value {
            TemplateValue::Map(map) => {
                let entries = map.entries.iter().enumerate();
                Some(
                    entries
                        .map(|(at, (_, value))| (map.key(at), value.clone()))
                        .collect(),
                )
            }
            TemplateValue::List(list) => {
                let mut pairs = Vec::new();
                for item in &list.items {
                    match item.as_list() {
                        Some([key, value]) => pairs.push((key.clone(), value.clone())),
                        _ => return Err(self.fail("`urlencode` takes a text or pairs")),
                    }
                }
                Some(pairs)
            }
            _ => None,
        };
        let mut out = String::new();
        let pairs: Vec<(TemplateValue, TemplateValue)> = match pairs {
            Some(pairs) => pairs,
            None => {
                let text = self.text_of(value)?;
                self.reserve_bytes(3 * text.len())?;
                percent_encode(&text, "/", &mut out);
                return self.made(text.mapped(&out));
            }
        };
        for (at, (key, value)) in pairs.iter().enumerate() {
            let (key, value) = (self.text_of(key)?, self.text_of(value)?);
            self.reserve_bytes(3 * (key.len() + value.len()) + 2)?;
            out.push_str(if at > 0 { "&" } else { "" });
            percent_encode(&key, "", &mut out);
            out.push('=');
            percent_encode(&value, "", &mut out);
        }
        self.text(&out)
    }

    /// Formats values as Python's `%` does.
    fn format(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        if !args.plain.is_empty() && !args.named.is_empty() {
            return Err(self.fail("`format` takes arguments by place or by name, not both"));
        }
        let pattern = self.text_of(value)?;
        self.scan(pattern.len())?;
        let mut plain = args.plain.iter();
        let mut out = TemplateTextBuilder::default();
        let mut at = 0;
        while let Some(len) = pattern[at..].find('%') {
            out.push_part(&pattern, at..at + len);
            at += len + 1;
            let rest = &pattern[at..];
            if rest.starts_with('%') {
                out.push_str("%", false);
                at += 1;
                continue;
            }
            let (name, rest) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
                Some((name, rest)) => (Some(name), rest),
                None => (None, rest),
            };
            let Some((field, used)) = FormatField::parse(rest) else {
                return Err(self.unsupported("this conversion of `format`"));
            };
            at = pattern.len() - rest.len() + used;
            let found = match name {
                Some(name) => args
                    .named
                    .iter()
                    .find(|(known, _)| known == name)
                    .map(|(_, v)| v),
                None => plain.next(),
            };
            let Some(found) = found else {
                return Err(self.fail("`format` has too few arguments"));
            };
            let text = self.field(&field, found)?;
            out.push(&text);
        }
        out.push_part(&pattern, at..pattern.len());
        if plain.next().is_some() {
            return Err(self.fail("`format` has too many arguments"));
        }
        self.made(out.finish())
    }

    fn field(
        &mut self,
        field: &FormatField,
        value: &TemplateValue,
    ) -> Result<TemplateText, TemplateError> {
        self.reserve_bytes(field.width + field.precision.unwrap_or(0) + 400)?;
        if field.conversion == 's' {
            let text = self.text_of(value)?;
            let cut = field.precision.unwrap_or(usize::MAX);
            let cut = text
                .char_indices()
                .nth(cut)
                .map_or(text.len(), |(at, _)| at);
            let pad = " ".repeat(field.width.saturating_sub(text[..cut].chars().count()));
            let mut out = TemplateTextBuilder::default();
            out.push_str(if field.is_left { "" } else { &pad }, false);
            out.push_part(&text, 0..cut);
            out.push_str(if field.is_left { &pad } else { "" }, false);
            return Ok(out.finish());
        }
        let (is_negative, digits) = match (field.conversion, value.as_int(), value.as_float()) {
            ('f' | 'F', _, Some(x)) if x.is_finite() => (
                x.is_sign_negative(),
                format!("{:.*}", field.precision.unwrap_or(6), x.abs()),
            ),
            ('d' | 'i' | 'u', Some(x), _) => (x < 0, x.unsigned_abs().to_string()),
            ('d' | 'i' | 'u', None, Some(x)) if x.abs() < 9e15 => {
                (x <= -1.0, x.abs().trunc().to_string())
            }
            ('x', Some(x), _) => (x < 0, format!("{:x}", x.unsigned_abs())),
            ('X', Some(x), _) => (x < 0, format!("{:X}", x.unsigned_abs())),
            ('o', Some(x), _) => (x < 0, format!("{:o}", x.unsigned_abs())),
            _ => {
                let (conversion, kind) = (field.conversion, value.kind());
                return Err(self.fail(format!("`%{conversion}` of {kind}")));
            }
        };
        let sign = match (is_negative, field.plus) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(_)) => " ",
            (false, None) => "",
        };
        let pad = field.width.saturating_sub(sign.len() + digits.len());
        let text = match (field.is_left, field.is_zero) {
            (true, _) => format!("{sign}{digits}{}", " ".repeat(pad)),
            (false, true) => format!("{sign}{}{digits}", "0".repeat(pad)),
            (false, false) => format!("{}{sign}{digits}", " ".repeat(pad)),
        };
        Ok(TemplateText::new(&text))
    }

    /// Rounds as Python does: halves to the even neighbour.
    fn round(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("round", args, &["precision", "method"])?;
        let precision = given[0].as_ref().map_or(Some(0), TemplateValue::as_int);
        let method = match &given[1] {
            None => "common",
            Some(method) => method.as_text().unwrap_or_default(),
        };
        let (Some(precision), true) = (precision, ["common", "ceil", "floor"].contains(&method))
        else {
            return Err(self.fail("`round` takes a precision, and `common`, `ceil` or `floor`"));
        };
        let precision = precision.clamp(-300, 300) as i32;
        let Some(x) = value.as_float() else {
            return Err(self.fail(format!("{} cannot be rounded", value.kind())));
        };
        if let (Some(int), "common", 0..) = (value.as_int(), method, precision) {
            return Ok(TemplateValue::Int(int));
        }
        let scale = 10f64.powi(precision);
        let rounded = match method {
            "ceil" => (x * scale).ceil() / scale,
            "floor" => (x * scale).floor() / scale,
            // The decimal notation is exact, and so is its rounding.
            _ if precision >= 0 => {
                let places = precision as usize;
                format!("{x:.places$}").parse().unwrap_or(x)
            }
            _ => {
                let unit = 10f64.powi(-precision);
                (x / unit).round_ties_even() * unit
            }
        };
        match (value.as_int(), method) {
            (Some(_), "common") => Ok(TemplateValue::Int(rounded as i64)),
            _ => Ok(TemplateValue::Float(rounded)),
        }
    }
}

/// A conversion such as `%-5.2f`.
struct FormatField {
    is_left: bool,
    is_zero: bool,
    plus: Option<char>,
    width: usize,
    precision: Option<usize>,
    conversion: char,
}

impl FormatField {
    /// The conversion at the start of a text after `%`, and its length in bytes.
    fn parse(text: &str) -> Option<(FormatField, usize)> {
        let flags = text.len() - text.trim_start_matches(['-', '0', '+', ' ']).len();
        let rest = &text[flags..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let width = match &rest[..digits] {
            "" => 0,
            width => width.parse().ok()?,
        };
        let mut used = flags + digits;
        let mut precision = None;
        if let Some(rest) = text[used..].strip_prefix('.') {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            precision = match &rest[..digits] {
                "" => Some(0),
                precision => Some(precision.parse().ok()?),
            };
            used += 1 + digits;
        }
        if width > MAX_WIDTH || precision.unwrap_or(0) > MAX_WIDTH {
            return None;
        }
        let conversion = text[used..].chars().next()?;
        let flags = &text[..flags];
        let plus = match (flags.contains('+'), flags.contains(' ')) {
            (true, _) => Some('+'),
            (false, true) => Some(' '),
            (false, false) => None,
        };
        let field = FormatField {
            is_left: flags.contains('-'),
            is_zero: flags.contains('0'),
            plus,
            width,
            precision,
            conversion,
        };
        Some((field, used + conversion.len_utf8()))
    }
}

/// Appends the UTF-8 bytes of a text, in hexadecimal unless they are unreserved or in `safe`.
fn percent_encode(text: &str, safe: &str, out: &mut String) {
    for byte in text.bytes() {
        let c = char::from(byte);
        match c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            true => out.push(c),
            // A query writes spaces so.
            false if c == ' ' && safe.is_empty() => out.push('+'),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
}
