//! Filters of sequences: order, groups and sums.

use std::cmp::Ordering;

use super::eval::{TemplateCallArgs, TemplateEvaluator};
use super::parser::TemplateBinaryOp;
use super::{TemplateError, TemplateValue};

/// The values of an item that determine its place.
type SortKey = Vec<TemplateValue>;

/// Arguments of a filter by their place in its list of parameters.
type GivenArgs = Vec<Option<TemplateValue>>;

/// Maximum number of parts that `slice` and `batch` make.
const MAX_PARTS: usize = 100_000;

fn is_true(given: &GivenArgs, at: usize) -> bool {
    given[at].as_ref().is_some_and(TemplateValue::is_true)
}

impl TemplateEvaluator<'_> {
    /// A filter of sequences, or another one.
    pub(super) fn sequence_filter(
        &mut self,
        name: &str,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        match name {
            "min" | "max" => self.extreme(name, value, args),
            "sort" => self.sort(value, args),
            "unique" => self.unique(value, args),
            "sum" => self.sum(value, args),
            "batch" => self.batch(value, args),
            "slice" => self.slice_filter(value, args),
            "groupby" => self.group_by(value, args),
            "attr" => self.attr(value, args),
            _ => self.text_filter(name, value, args),
        }
    }

    /// The key of an item: the item, or its attributes, of which a text may name several.
    fn sort_key(
        &mut self,
        item: &TemplateValue,
        attribute: Option<&TemplateValue>,
        (has_case, default): (bool, Option<&TemplateValue>),
    ) -> Result<SortKey, TemplateError> {
        let mut key = match attribute {
            None | Some(TemplateValue::None) => vec![item.clone()],
            Some(TemplateValue::Text(names)) => {
                let mut key = Vec::new();
                for name in names.split(',') {
                    key.push(self.path(item, &TemplateValue::text(name))?);
                }
                key
            }
            Some(other) => vec![self.path(item, other)?],
        };
        for part in &mut key {
            if let (TemplateValue::Undefined, Some(default)) = (&*part, default) {
                *part = default.clone();
            }
            if let (TemplateValue::Text(text), false) = (&*part, has_case) {
                self.reserve_bytes(text.len() + 64)?;
                *part = TemplateValue::text(&text.to_lowercase());
            }
        }
        Ok(key)
    }

    fn keys(
        &mut self,
        items: &[TemplateValue],
        attribute: Option<&TemplateValue>,
        options: (bool, Option<&TemplateValue>),
    ) -> Result<Vec<(SortKey, TemplateValue)>, TemplateError> {
        self.reserve_bytes(items.len() * 3 * size_of::<TemplateValue>())?;
        let keys = items
            .iter()
            .map(|item| Ok((self.sort_key(item, attribute, options)?, item.clone())));
        keys.collect()
    }

    /// The order of two keys, as Python compares tuples.
    fn key_order(&mut self, a: &SortKey, b: &SortKey) -> Result<Ordering, TemplateError> {
        for (a, b) in a.iter().zip(b) {
            self.step(1)?;
            let order = self.order_of(a, b)?;
            if order != Ordering::Equal {
                return Ok(order);
            }
        }
        Ok(Ordering::Equal)
    }

    fn order_of(
        &mut self,
        a: &TemplateValue,
        b: &TemplateValue,
    ) -> Result<Ordering, TemplateError> {
        if let (TemplateValue::List(a), TemplateValue::List(b)) = (a, b) {
            for (a, b) in a.items.iter().zip(&b.items) {
                let order = self.deeper(|own| own.order_of(a, b))?;
                if order != Ordering::Equal {
                    return Ok(order);
                }
            }
            return Ok(a.items.len().cmp(&b.items.len()));
        }
        Ok(self.order(a, b)?.unwrap_or(Ordering::Equal))
    }

    /// Sorts by merging, which is stable and, unlike the sort of the standard library, may fail.
    fn merge_sort(
        &mut self,
        mut pairs: Vec<(SortKey, TemplateValue)>,
        is_reverse: bool,
    ) -> Result<Vec<(SortKey, TemplateValue)>, TemplateError> {
        if pairs.len() < 2 {
            return Ok(pairs);
        }
        let right = pairs.split_off(pairs.len() / 2);
        let mut left = self.merge_sort(pairs, is_reverse)?.into_iter().peekable();
        let mut right = self.merge_sort(right, is_reverse)?.into_iter().peekable();
        let mut merged = Vec::with_capacity(left.len() + right.len());
        while let (Some((a, _)), Some((b, _))) = (left.peek(), right.peek()) {
            let order = self.key_order(a, b)?;
            let takes_right = match is_reverse {
                true => order == Ordering::Less,
                false => order == Ordering::Greater,
            };
            merged.extend(if takes_right {
                right.next()
            } else {
                left.next()
            });
        }
        merged.extend(left);
        merged.extend(right);
        Ok(merged)
    }

    fn sort(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("sort", args, &["reverse", "case_sensitive", "attribute"])?;
        let items = self.items(value)?;
        let options = (is_true(&given, 1), None);
        let pairs = self.keys(&items.items, given[2].as_ref(), options)?;
        let sorted = self.merge_sort(pairs, is_true(&given, 0))?;
        self.list(sorted.into_iter().map(|(_, item)| item).collect())
    }

    fn extreme(
        &mut self,
        name: &str,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args(name, args, &["case_sensitive", "attribute"])?;
        let items = self.items(value)?;
        let options = (is_true(&given, 0), None);
        let mut pairs = self
            .keys(&items.items, given[1].as_ref(), options)?
            .into_iter();
        let Some(mut best) = pairs.next() else {
            return Ok(TemplateValue::Undefined);
        };
        let wanted = match name {
            "min" => Ordering::Less,
            _ => Ordering::Greater,
        };
        for pair in pairs {
            if self.key_order(&pair.0, &best.0)? == wanted {
                best = pair;
            }
        }
        Ok(best.1)
    }

    fn unique(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("unique", args, &["case_sensitive", "attribute"])?;
        let items = self.items(value)?;
        let options = (is_true(&given, 0), None);
        let pairs = self.keys(&items.items, given[1].as_ref(), options)?;
        let mut kept: Vec<(SortKey, TemplateValue)> = Vec::new();
        'pairs: for (key, item) in pairs {
            for (known, _) in &kept {
                let mut is_equal = known.len() == key.len();
                for (a, b) in known.iter().zip(&key) {
                    is_equal = is_equal && self.equal(a, b)?;
                }
                if is_equal {
                    continue 'pairs;
                }
            }
            kept.push((key, item));
        }
        self.list(kept.into_iter().map(|(_, item)| item).collect())
    }

    fn sum(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("sum", args, &["attribute", "start"])?;
        let mut sum = given[1].clone().unwrap_or(TemplateValue::Int(0));
        if sum.as_text().is_some() {
            return Err(self.fail("`sum` of texts; expected numbers: join texts by `join`"));
        }
        let items = self.items(value)?;
        for item in &items.items {
            self.step(1)?;
            let item = match &given[0] {
                None | Some(TemplateValue::None) => item.clone(),
                Some(attribute) => self.path(item, attribute)?,
            };
            sum = self.binary(TemplateBinaryOp::Add, &sum, &item)?;
        }
        Ok(sum)
    }

    /// A positive number of parts or items.
    fn count(&self, name: &str, value: Option<&TemplateValue>) -> Result<usize, TemplateError> {
        let count = value.and_then(TemplateValue::as_int);
        let count = count.and_then(|count| usize::try_from(count).ok());
        match count.filter(|count| (1..=MAX_PARTS).contains(count)) {
            Some(count) => Ok(count),
            None => Err(self.fail(format!("`{name}` takes a number from 1 to {MAX_PARTS}"))),
        }
    }

    fn batch(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("batch", args, &["linecount", "fill_with"])?;
        let len = self.count("batch", given[0].as_ref())?;
        let items = self.items(value)?;
        let mut parts = Vec::new();
        for part in items.items.chunks(len) {
            let mut part = part.to_vec();
            if let Some(fill) = given[1]
                .as_ref()
                .filter(|fill| !matches!(fill, TemplateValue::None))
            {
                self.reserve_bytes(len * size_of::<TemplateValue>())?;
                part.resize(len, fill.clone());
            }
            parts.push(self.list(part)?);
        }
        self.list(parts)
    }

    /// Parts of nearly equal length.
    fn slice_filter(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("slice", args, &["slices", "fill_with"])?;
        let count = self.count("slice", given[0].as_ref())?;
        self.step(count)?;
        let items = self.items(value)?;
        let (len, longer) = (items.items.len() / count, items.items.len() % count);
        let mut parts = Vec::new();
        let mut start = 0;
        for at in 0..count {
            let end = start + len + usize::from(at < longer);
            let mut part = items.items[start..end].to_vec();
            if let Some(fill) = given[1]
                .as_ref()
                .filter(|fill| !matches!(fill, TemplateValue::None))
                && at >= longer
            {
                part.push(fill.clone());
            }
            parts.push(self.list(part)?);
            start = end;
        }
        self.list(parts)
    }

    /// Lists of a key and its items; the key is that of the first item.
    fn group_by(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let names = ["attribute", "default", "case_sensitive"];
        let given = self.bind_args("groupby", args, &names)?;
        let Some(attribute) = &given[0] else {
            return Err(self.fail("`groupby` takes an attribute"));
        };
        let (default, has_case) = (given[1].as_ref(), is_true(&given, 2));
        let items = self.items(value)?;
        let pairs = self.keys(&items.items, Some(attribute), (has_case, default))?;
        let sorted = self.merge_sort(pairs, false)?;
        let mut groups: Vec<(SortKey, Vec<TemplateValue>)> = Vec::new();
        for (key, item) in sorted {
            match groups.last_mut() {
                Some((known, items)) if self.key_order(known, &key)? == Ordering::Equal => {
                    items.push(item);
                }
                _ => groups.push((key, vec![item])),
            }
        }
        let mut all = Vec::new();
        for (_, items) in groups {
            let key = self.sort_key(&items[0], Some(attribute), (true, default))?;
            let key = match <[TemplateValue; 1]>::try_from(key) {
                Ok([key]) => key,
                Err(keys) => self.list(keys)?,
            };
            let items = self.list(items)?;
            all.push(self.list(vec![key, items])?);
        }
        self.list(all)
    }

    /// An attribute, which entries of objects are not.
    fn attr(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("attr", args, &["name"])?;
        let Some(TemplateValue::Text(name)) = &given[0] else {
            return Err(self.fail("`attr` takes the name of an attribute"));
        };
        match value {
            TemplateValue::Map(_) | TemplateValue::Undefined => Ok(TemplateValue::Undefined),
            value => self.attribute(value, name, || "the value".to_owned()),
        }
    }
}
