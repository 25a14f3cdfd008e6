//! `tercet devices`: the devices that this build can use.

use std::io::Write;

use serde::Serialize;
use tercet::switches_in_effect;

use super::{open, switches};
use crate::error::{CliError, CommandOutcome};
use crate::{drivers, output};

#[derive(clap::Args)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also list the features that --without turns off, and the kernel variants of each device
    #[arg(long)]
    variants: bool,
}

#[derive(Serialize)]
struct DeviceRow {
    name: String,
    usable: bool,
    description: String,
    /// The kernel families and their variants, if the option `--variants` is set; otherwise none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    variants: Vec<FamilyRow>,
    /// The switches that the device would be opened with.
    #[serde(skip_serializing_if = "String::is_empty")]
    switches: String,
}

#[derive(Serialize)]
struct FamilyRow {
    family: &'static str,
    variants: Vec<String>,
}

/// Opens a device and returns its kernel families, or an empty list if that fails.
fn families(name: &str) -> Vec<FamilyRow> {
    let families = open(name, false).map(|device| device.variant_families());
    let rows = families.unwrap_or_default().into_iter();
    rows.map(|f| FamilyRow {
        family: f.name,
        variants: f.variants,
    })
    .collect()
}

pub(crate) fn run(args: &DevicesArgs) -> Result<CommandOutcome, CliError> {
    // Refuses invalid switches in the environment.
    let switches = switches_in_effect(&switches()).map_err(|e| CliError::Usage(e.to_string()))?;
    let rows: Vec<DeviceRow> = drivers::labelled(tercet::devices)
        .into_iter()
        .map(|d| DeviceRow {
            variants: match args.variants && d.usable {
                true => families(&d.name),
                false => Vec::new(),
            },
            name: d.name,
            usable: d.usable,
            description: d.description,
            switches: switches.to_string(),
        })
        .collect();
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for DeviceRow {
            name,
            description,
            variants,
            ..
        } in &rows
        {
            writeln!(out, "{name:<12} {description}")?;
            for FamilyRow { family, variants } in variants {
                writeln!(out, "{:<12} {family}: {}", "", variants.join(", "))?;
            }
        }
        if args.variants {
            let features = tercet::SwitchableFeature::ALL.map(tercet::SwitchableFeature::name);
            writeln!(out, "{:<12} {}", "features", features.join(", "))?;
        }
        if !switches.is_empty() {
            writeln!(out, "{:<12} {switches}", "switches")?;
        }
        let compiler = tercet::BUILD.compiler;
        match tercet::compiler_trial() {
            Ok(()) => writeln!(out, "{:<12} {compiler}, its trial passed", "compiler"),
            Err(e) => writeln!(out, "{:<12} {compiler}: {e}", "compiler"),
        }
    })?;
    Ok(CommandOutcome::Done)
}
