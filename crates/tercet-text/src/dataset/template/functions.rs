//! Functions that every template can call.

use super::eval::{TemplateCallArgs, TemplateEvaluator};
use super::value::{TemplateInternal, TemplateInternalKind};
use super::{TemplateError, TemplateValue, clip};

/// Keys and values of an object, in order.
type TemplateEntries = Vec<(TemplateValue, TemplateValue)>;

/// The limit of Jinja's sandbox.
const MAX_RANGE: i64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateFunction {
    Range,
    Namespace,
    Dict,
    RaiseException,
    StrftimeNow,
}

impl TemplateFunction {
    pub(super) fn named(name: &str) -> Option<TemplateFunction> {
        match name {
            "range" => Some(TemplateFunction::Range),
            "namespace" => Some(TemplateFunction::Namespace),
            "dict" => Some(TemplateFunction::Dict),
            "raise_exception" => Some(TemplateFunction::RaiseException),
            "strftime_now" => Some(TemplateFunction::StrftimeNow),
            _ => None,
        }
    }
}

impl TemplateEvaluator<'_> {
    pub(super) fn function(
        &mut self,
        function: TemplateFunction,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        match function {
            TemplateFunction::Range => self.range(args),
            TemplateFunction::Namespace => {
                let (entries, _) = self.entries("namespace", args)?;
                self.reserve_bytes(64 + entries.len() * 64)?;
                // Other keys than texts are no names of attributes.
                let named = |(key, value): (TemplateValue, TemplateValue)| match key {
                    TemplateValue::Text(name) => Some((name.shared(), value)),
                    _ => None,
                };
                self.namespaces
                    .push(entries.into_iter().filter_map(named).collect());
                let kind = TemplateInternalKind::Namespace(self.namespaces.len() - 1);
                Ok(TemplateValue::Internal(TemplateInternal(kind)))
            }
            TemplateFunction::Dict => {
                let (entries, has_literal_keys) = self.entries("dict", args)?;
                self.map(entries, has_literal_keys)
            }
            TemplateFunction::RaiseException => {
                let given = self.bind_args("raise_exception", args, &["message"])?;
                let message = given.into_iter().next().flatten();
                let message = self.text_of(&message.unwrap_or(TemplateValue::Undefined))?;
                Err(TemplateError::Raised {
                    message: clip(&message),
                })
            }
            TemplateFunction::StrftimeNow => {
                let given = self.bind_args("strftime_now", args, &["format"])?;
                match given.into_iter().next().flatten() {
                    Some(TemplateValue::Text(format)) => {
                        self.reserve_bytes(8 * format.len())?;
                        let text = self.strftime(&format)?;
                        self.text(&text)
                    }
                    _ => Err(self.fail("`strftime_now` takes a format")),
                }
            }
        }
    }

    /// Entries of a new object or namespace: first those of the object in the first argument, then
    /// those from named arguments. Also returns whether keys are literal (from message content).
    fn entries(
        &mut self,
        callee: &str,
        args: TemplateCallArgs,
    ) -> Result<(TemplateEntries, bool), TemplateError> {
        let (mut entries, has_literal_keys) = match &args.plain[..] {
            [] => (Vec::new(), false),
            [TemplateValue::Map(map)] => {
                self.reserve_bytes(map.entries.len() * 64)?;
                let entries = map.entries.iter().enumerate();
                let entries = entries.map(|(at, (_, value))| (map.key(at), value.clone()));
                (entries.collect(), map.has_literal_keys)
            }
            _ => return Err(self.unsupported(format!("`{callee}` of this"))),
        };
        for (name, value) in args.named {
            entries.push((TemplateValue::text(&name), value));
        }
        Ok((entries, has_literal_keys))
    }

    fn range(&mut self, args: TemplateCallArgs) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("range", args, &["start", "stop", "step"])?;
        let mut bounds = [None; 3];
        for (bound, value) in bounds.iter_mut().zip(given) {
            let Some(value) = value else { continue };
            *bound = value.as_int();
            if bound.is_none() {
                return Err(self.fail(format!("`range` takes integers, not {}", value.kind())));
            }
        }
        let (start, stop, step) = match bounds {
            [Some(stop), None, step] => (0, stop, step.unwrap_or(1)),
            [Some(start), Some(stop), step] => (start, stop, step.unwrap_or(1)),
            [None, _, _] => return Err(self.fail("`range` takes a number")),
        };
        let (low, high) = if step > 0 {
            (start, stop)
        } else {
            (stop, start)
        };
        let span = i128::from(high) - i128::from(low);
        let step_size = i128::from(step).abs();
        if step == 0 {
            return Err(self.fail("`range` of step 0"));
        }
        let count = (span.max(0) + step_size - 1) / step_size;
        if count > i128::from(MAX_RANGE) {
            return Err(self.fail(format!("`range` has more than {MAX_RANGE} numbers")));
        }
        let count = count as i64;
        self.step(count as usize)?;
        let items = (0..count)
            .map(|i| TemplateValue::Int(start.wrapping_add(i.wrapping_mul(step))))
            .collect();
        self.list(items)
    }

    /// Formats the rendering time, in UTC.
    fn strftime(&self, format: &str) -> Result<String, TemplateError> {
        const DAYS: [&str; 7] = [
            "Sunday",
            "Monday",
            "Tuesday",
            "Wednesday",
            "Thursday",
            "Friday",
            "Saturday",
        ];
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        let now = self.now.clamp(0, MAX_TIME);
        let (days, seconds) = (now / 86_400, now % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let month_name = MONTHS[(month - 1) as usize];
        let day_name = DAYS[((days + 4) % 7) as usize];
        let hour12 = (hour + 11) % 12 + 1;
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let padded = code != Some('-');
            if !padded {
                code = chars.next();
            }
            let two = |x: i64| match padded {
                true => format!("{x:02}"),
                false => x.to_string(),
            };
            out.push_str(&match code {
                Some('Y') => year.to_string(),
                Some('y') => two(year % 100),
                Some('m') => two(month),
                Some('d') => two(day),
                Some('e') => format!("{day:2}"),
                Some('H') => two(hour),
                Some('I') => two(hour12),
                Some('M') => two(minute),
                Some('S') => two(second),
                Some('B') => month_name.to_owned(),
                Some('b' | 'h') => month_name[..3].to_owned(),
                Some('A') => day_name.to_owned(),
                Some('a') => day_name[..3].to_owned(),
                Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
                Some('Z') => "UTC".to_owned(),
                Some('F') => format!("{year}-{month:02}-{day:02}"),
                Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
                Some('%') => "%".to_owned(),
                code => {
                    let code = code.map_or(String::new(), |c| c.to_string());
                    return Err(self.unsupported(format!("`%{}` of a date", clip(&code))));
                }
            });
        }
        Ok(out)
    }
}

/// The last second of the year 9999.
const MAX_TIME: i64 = 253_402_300_799;

/// Gregorian year, month and day of a day number since 1970.
fn civil(mut days: i64) -> (i64, i64, i64) {
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let cycles = days / 146_097;
    let mut year = 1970 + 400 * cycles;
    days %= 146_097;
    loop {
        let len = if leap(year) { 366 } else { 365 };
        if days < len {
            break;
        }
        days -= len;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let lens = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for len in lens {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    (year, month, days + 1)
}
