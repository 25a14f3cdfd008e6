//! Reads criterion's results under `target/criterion`.
//!
//! Each benchmark has a folder `new/` with `benchmark.json` (name and throughput) and
//! `estimates.json` (nanoseconds per iteration).

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{self, XtaskError};

/// The result of one benchmark.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CriterionMeasurement {
    /// `group/name`.
    pub(super) id: String,
    /// The median time of one iteration.
    pub(super) time_ns: f64,
    /// The work of one iteration, if the bench declares it.
    pub(super) work: Option<WorkAmount>,
}

/// The amount of work of one iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum WorkAmount {
    Bytes(u64),
    Elements(u64),
}

#[derive(Deserialize)]
struct CriterionBenchmark {
    full_id: String,
    throughput: Option<CriterionThroughput>,
}

/// The representation in criterion's files. An unlisted variant is an error, because ignoring it
/// would drop a column of the table.
#[derive(Deserialize)]
enum CriterionThroughput {
    Bytes(u64),
    BytesDecimal(u64),
    Elements(u64),
}

#[derive(Deserialize)]
struct CriterionEstimates {
    median: CriterionEstimate,
}

#[derive(Deserialize)]
struct CriterionEstimate {
    point_estimate: f64,
}

/// All results under `dir` written at or after `since`, sorted by name.
pub(super) fn read(dir: &Path, since: SystemTime) -> Result<Vec<CriterionMeasurement>, XtaskError> {
    let mut found = Vec::new();
    collect(dir, since, &mut found)?;
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

fn collect(
    dir: &Path,
    since: SystemTime,
    found: &mut Vec<CriterionMeasurement>,
) -> Result<(), XtaskError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(error::file("list", dir)(source)),
    };
    for entry in entries {
        let path = entry.map_err(error::file("list", dir))?.path();
        if !path.is_dir() {
            continue;
        }
        if path.file_name().is_some_and(|name| name == "new") {
            found.extend(measurement(&path, since)?);
        } else {
            collect(&path, since, found)?;
        }
    }
    Ok(())
}

/// Reads a measurement; `None` for results of an earlier run, and for a group folder that is named
/// `new`.
fn measurement(dir: &Path, since: SystemTime) -> Result<Option<CriterionMeasurement>, XtaskError> {
    let estimates = dir.join("estimates.json");
    let written = match fs::metadata(&estimates).and_then(|data| data.modified()) {
        Ok(written) => written,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(error::file("read", &estimates)(source)),
    };
    if written < since {
        return Ok(None);
    }
    let CriterionBenchmark {
        full_id,
        throughput,
    } = json(&dir.join("benchmark.json"))?;
    let CriterionEstimates { median } = json(&estimates)?;
    let work = throughput.map(|throughput| match throughput {
        CriterionThroughput::Bytes(bytes) | CriterionThroughput::BytesDecimal(bytes) => {
            WorkAmount::Bytes(bytes)
        }
        CriterionThroughput::Elements(elements) => WorkAmount::Elements(elements),
    });
    Ok(Some(CriterionMeasurement {
        id: full_id,
        time_ns: median.point_estimate,
        work,
    }))
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, XtaskError> {
    let text = fs::read(path).map_err(error::file("read", path))?;
    serde_json::from_slice(&text).map_err(|source| XtaskError::Json {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    struct ScratchFolder(PathBuf);

    impl ScratchFolder {
        fn new(name: &str) -> Self {
            let name = format!("xtask-criterion-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn write(&self, folder: &str, id: &str, throughput: &str, median_ns: f64) {
            let dir = self.0.join(folder).join("new");
            fs::create_dir_all(&dir).unwrap();
            let benchmark = format!(
                r#"{{"group_id":"g","function_id":"f","value_str":null,
                "throughput":{throughput},"full_id":"{id}","directory_name":"x","title":"t"}}"#
            );
            let estimate = |ns: f64| {
                format!(
                    r#"{{"confidence_interval":{{"confidence_level":0.95,"lower_bound":1.0,
                    "upper_bound":2.0}},"point_estimate":{ns},"standard_error":0.1}}"#
                )
            };
            let estimates = format!(
                r#"{{"mean":{},"median":{},"slope":null}}"#,
                estimate(9e9),
                estimate(median_ns)
            );
            fs::write(dir.join("benchmark.json"), benchmark).unwrap();
            fs::write(dir.join("estimates.json"), estimates).unwrap();
        }
    }

    impl Drop for ScratchFolder {
        fn drop(&mut self) {
            // A leftover temporary folder is harmless.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn results_are_read_sorted_with_their_work() {
        let scratch = ScratchFolder::new("sorted");
        scratch.write("map/chain", "map/chain", r#"{"Bytes":64}"#, 4.0);
        scratch.write("gemm/a_b", "gemm/a", r#"{"Elements":7}"#, 2.5);
        scratch.write("plain", "plain", "null", 1.0);
        fs::create_dir_all(scratch.0.join("report")).unwrap();
        fs::create_dir_all(scratch.0.join("empty/new")).unwrap();
        let measurement = |id: &str, time_ns, work| CriterionMeasurement {
            id: id.into(),
            time_ns,
            work,
        };
        assert_eq!(
            read(&scratch.0, SystemTime::UNIX_EPOCH).unwrap(),
            [
                measurement("gemm/a", 2.5, Some(WorkAmount::Elements(7))),
                measurement("map/chain", 4.0, Some(WorkAmount::Bytes(64))),
                measurement("plain", 1.0, None),
            ]
        );
    }

    #[test]
    fn results_of_earlier_runs_are_left_out() {
        let scratch = ScratchFolder::new("stale");
        scratch.write("a", "a", "null", 1.0);
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(read(&scratch.0, later).unwrap(), []);
        assert_eq!(read(&scratch.0.join("absent"), later).unwrap(), []);
    }

    #[test]
    fn a_torn_or_unknown_file_is_named() {
        let scratch = ScratchFolder::new("torn");
        scratch.write("a", "a", r#"{"Furlongs":3}"#, 1.0);
        let error = read(&scratch.0, SystemTime::UNIX_EPOCH).unwrap_err();
        assert!(error.to_string().contains("benchmark.json"), "{error}");
        scratch.write("a", "a", "null", 1.0);
        fs::write(scratch.0.join("a/new/estimates.json"), r#"{"mean":"#).unwrap();
        let error = read(&scratch.0, SystemTime::UNIX_EPOCH).unwrap_err();
        assert!(error.to_string().contains("estimates.json"), "{error}");
    }
}
