//! Further keyword arguments of `generate` and `chat`: samplers, stop tokens and ends.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tercet_models::{
    DRY_BREAKERS, DryBreakers, MirostatOptions, SamplerStep, SamplingOptions, Tokenizer,
};

use crate::errors;

/// The names of the arguments.
const NAMES: [&str; 19] = [
    "repetition_window",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "samplers",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
];

/// Refuses arguments with other names.
fn check_names(arguments: &Bound<'_, PyDict>) -> PyResult<()> {
    for name in arguments.keys() {
        let name: String = name.extract()?;
        if !NAMES.contains(&name.as_str()) {
            return Err(PyTypeError::new_err(format!(
                "unexpected keyword argument '{name}'; expected one of {}",
                NAMES.join(", ")
            )));
        }
    }
    Ok(())
}

/// Sets the sampling options of further arguments for texts that end with `eos`. Returns the tokens that
/// end the text.
pub(crate) fn with_further_arguments(
    sampling: &mut SamplingOptions,
    arguments: Option<&Bound<'_, PyDict>>,
    (tokenizer, vocab): (&Tokenizer, usize),
    eos: &[u32],
) -> PyResult<Vec<u32>> {
    let mut ends = eos.to_vec();
    let Some(arguments) = arguments else {
        return Ok(ends);
    };
    check_names(arguments)?;
    let of = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(arguments.get_item(name)?.filter(|value| !value.is_none()))
    };
    let number = |name: &str, to: &mut f64| -> PyResult<()> {
        if let Some(value) = of(name)? {
            *to = value.extract()?;
        }
        Ok(())
    };
    // A number of tokens; -1 stands for all.
    let window = |name: &str, to: &mut usize| -> PyResult<()> {
        if let Some(value) = of(name)? {
            let count: i64 = value.extract()?;
            *to = match count {
                -1 => usize::MAX,
                count => usize::try_from(count).map_err(|_| {
                    PyValueError::new_err(format!("{name} is {count}; expected -1 or more"))
                })?,
            };
        }
        Ok(())
    };
    window("repetition_window", &mut sampling.repetition_window)?;
    number("typical_p", &mut sampling.typical_p)?;
    number("top_n_sigma", &mut sampling.top_n_sigma)?;
    number("xtc_probability", &mut sampling.xtc_probability)?;
    number("xtc_threshold", &mut sampling.xtc_threshold)?;
    number("dynatemp_range", &mut sampling.dynatemp_range)?;
    number("dynatemp_exponent", &mut sampling.dynatemp_exponent)?;
    number("dry_multiplier", &mut sampling.dry.multiplier)?;
    number("dry_base", &mut sampling.dry.base)?;
    window("dry_penalty_last_n", &mut sampling.dry.window)?;
    if let Some(length) = of("dry_allowed_length")? {
        sampling.dry.allowed_length = length.extract()?;
    }
    if sampling.dry.multiplier > 0.0 {
        let breakers = match of("dry_sequence_breakers")? {
            Some(texts) => DryBreakers::from_texts(&texts.extract::<Vec<String>>()?, tokenizer),
            None => DryBreakers::from_texts(&DRY_BREAKERS, tokenizer),
        };
        sampling.dry.breakers = Arc::new(breakers.map_err(errors::model)?);
    }
    let version: u32 = of("mirostat")?.map_or(Ok(0), |value| value.extract())?;
    sampling.mirostat = match version {
        0 => None,
        1 => Some(MirostatOptions::V1),
        2 => Some(MirostatOptions::V2),
        other => {
            let text = format!("mirostat is {other}; expected 0, 1 or 2");
            return Err(PyValueError::new_err(text));
        }
    };
    if let Some(mirostat) = &mut sampling.mirostat {
        number("mirostat_tau", &mut mirostat.tau)?;
        number("mirostat_eta", &mut mirostat.eta)?;
    }
    if let Some(names) = of("samplers")? {
        let names = match names.extract::<Vec<String>>() {
            Ok(names) => names.join(";"),
            Err(_) => names.extract()?,
        };
        sampling.samplers = SamplerStep::parse_all(&names)
            .map_err(|e| PyValueError::new_err(format!("samplers: {e}")))?;
    }
    let stops: Vec<u32> = of("stop_token_ids")?.map_or(Ok(Vec::new()), |ids| ids.extract())?;
    if let Some(id) = stops.iter().find(|id| **id as usize >= vocab) {
        let text = format!("stop_token_ids: token {id} is outside the vocabulary of {vocab}");
        return Err(PyValueError::new_err(text));
    }
    ends.extend(&stops);
    if let Some(count) = of("min_tokens")? {
        sampling.min_tokens = count.extract()?;
    }
    sampling.ends = ends.clone();
    let ignores: bool = of("ignore_eos")?.map_or(Ok(false), |value| value.extract())?;
    if ignores {
        sampling.min_tokens = usize::MAX;
        sampling.ends = eos
            .iter()
            .copied()
            .filter(|id| !stops.contains(id))
            .collect();
    }
    Ok(ends)
}

/// The seed of a text; `None` and -1 draw one.
pub(crate) fn drawn_seed(seed: Option<i128>) -> PyResult<u64> {
    match seed {
        None | Some(-1) => {
            use std::hash::{BuildHasher, RandomState};
            // The standard library seeds hash maps from the system's random source.
            Ok(RandomState::new().hash_one(0u8) >> 32)
        }
        Some(seed) => u64::try_from(seed).map_err(|_| {
            PyValueError::new_err(format!(
                "seed is {seed}; expected a whole number up to {}, or None or -1 for any",
                u64::MAX
            ))
        }),
    }
}
