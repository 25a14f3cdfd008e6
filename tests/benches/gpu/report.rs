//! The results, printed immediately and saved as JSON.

use serde_json::{Value, json};

/// The results so far.
pub(crate) struct Report {
    device: String,
    rows: Vec<Value>,
}

impl Report {
    pub(crate) fn new(device: &str) -> Report {
        println!(
            "{:<44} {:>12} {:>14}",
            format!("device {device}"),
            "time",
            "rate"
        );
        Report {
            device: device.to_string(),
            rows: Vec::new(),
        }
    }

    /// Adds a time in seconds, and a rate derived from it.
    pub(crate) fn row(&mut self, name: &str, seconds: f64, rate: Option<(f64, &str)>) {
        let shown = match seconds {
            s if s < 1e-3 => format!("{:.2} us", s * 1e6),
            s if s < 1.0 => format!("{:.3} ms", s * 1e3),
            s => format!("{s:.3} s"),
        };
        let rate_shown = rate.map_or(String::new(), |(r, unit)| format!("{r:.2} {unit}"));
        println!("{name:<44} {shown:>12} {rate_shown:>14}");
        self.rows.push(json!({
            "name": name, "seconds": seconds,
            "rate": rate.map(|(r, _)| r), "unit": rate.map(|(_, u)| u),
        }));
    }

    /// Adds a memory size, printed in MiB.
    pub(crate) fn bytes(&mut self, name: &str, bytes: u64) {
        let mib = format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        println!("{name:<44} {mib:>12}");
        self.rows.push(json!({"name": name, "bytes": bytes}));
    }

    pub(crate) fn failed(&mut self, name: &str, why: &str) {
        println!("{name:<44} FAILED: {why}");
        self.rows.push(json!({"name": name, "failed": why}));
    }

    pub(crate) fn json(&self) -> String {
        json!({"device": self.device, "rows": self.rows}).to_string()
    }
}

/// The median; 0 without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
