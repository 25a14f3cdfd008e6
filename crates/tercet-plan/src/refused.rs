//! Kernel variants that the driver of a device refuses. Programs use the next variant of the family
//! instead. The cache folder keeps the list, so that the driver is asked once.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tercet_ir::{CompileError, SwitchError, VariantName};

use crate::caps::DeviceCaps;
use crate::device::DeviceModel;
use crate::tune::{TunableBackend, VariantTrial, try_variant};
use tercet_program::GpuProgram;

/// First line of the text form. Another version of the library may have other kernels, which are
/// tried again.
const HEADER: &str = concat!("tercet refused ", env!("CARGO_PKG_VERSION"));

/// The outcomes of a trial in the text form.
const PASSED: &str = "passed";
const FAILED: &str = "failed";

/// The kernel variants that a driver refuses, each with the driver's message.
///
/// ```
/// use tercet_plan::RefusedVariants;
/// let refused = RefusedVariants::default();
/// assert!(refused.lines().is_empty());
/// assert!(RefusedVariants::from_text("another file").lines().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct RefusedVariants(Mutex<Refusals>);

/// The refused variants, and the outcomes of trials.
#[derive(Debug, Default)]
struct Refusals {
    variants: Vec<(VariantName, String)>,
    /// The names of features whose trial ran, each with its outcome.
    trials: Vec<(String, bool)>,
}

impl RefusedVariants {
    /// Parses the text form. A text of another version gives an empty list, and damaged lines are
    /// skipped: the driver is then asked again.
    pub fn from_text(text: &str) -> RefusedVariants {
        let mut lines = text.lines();
        let is_ours = lines.next() == Some(HEADER);
        let mut known = Refusals::default();
        for line in lines.filter(|_| is_ours) {
            let Some((name, rest)) = line.split_once(' ') else {
                continue;
            };
            match (name.strip_prefix("trial:"), rest) {
                (Some(trial), PASSED) => known.trials.push((trial.to_string(), true)),
                (Some(trial), FAILED) => known.trials.push((trial.to_string(), false)),
                (Some(_), _) => {}
                (None, reason) => {
                    if let Ok(name) = name.parse() {
                        known.variants.push((name, reason.to_string()));
                    }
                }
            }
        }
        RefusedVariants(Mutex::new(known))
    }

    /// The text form.
    pub fn text(&self) -> String {
        let known = self.known();
        let variants = known.variants.iter();
        let variants = variants.map(|(name, reason)| format!("{name} {reason}\n"));
        let trials = known.trials.iter().map(|(name, passed)| {
            let outcome = if *passed { PASSED } else { FAILED };
            format!("trial:{name} {outcome}\n")
        });
        std::iter::once(format!("{HEADER}\n"))
            .chain(variants)
            .chain(trials)
            .collect()
    }

    /// One line for each variant and each failed trial, for people.
    pub fn lines(&self) -> Vec<String> {
        let known = self.known();
        let variants = known.variants.iter();
        let variants =
            variants.map(|(name, reason)| format!("the driver refused {name}: {reason}"));
        let failed = known.trials.iter().filter(|(_, passed)| !passed);
        let failed = failed.map(|(name, _)| format!("the trial of {name} failed"));
        variants.chain(failed).collect()
    }

    /// The outcome of a trial of an earlier process on this device and driver.
    pub fn trial(&self, name: &str) -> Option<bool> {
        let known = self.known();
        let found = known.trials.iter().find(|(known, _)| known == name);
        found.map(|(_, passed)| *passed)
    }

    /// Records the outcome of a trial of a feature, with a note if it failed. The caller stores
    /// [`RefusedVariants::text`].
    ///
    /// ```
    /// use tercet_plan::RefusedVariants;
    /// let refused = RefusedVariants::default();
    /// refused.add_trial("fragment_layout", false);
    /// assert_eq!(refused.trial("fragment_layout"), Some(false));
    /// let stored = RefusedVariants::from_text(&refused.text());
    /// assert_eq!(stored.lines(), ["the trial of fragment_layout failed"]);
    /// ```
    pub fn add_trial(&self, name: &str, passed: bool) {
        if !passed {
            tracing::warn!(
                target: NOTES,
                "the trial of {name} failed on this device; kernels without it run",
            );
        }
        let mut known = self.known();
        known.trials.retain(|(known, _)| known != name);
        known.trials.push((name.to_string(), passed));
    }

    /// Runs the trials whose outcome is not known yet, and passes the text form of the list to `store`
    /// if one ran. Variants whose trial failed are then treated as refused.
    pub fn try_variants(
        &self,
        device: &dyn TunableBackend,
        trials: &[VariantTrial],
        store: impl Fn(&str),
    ) {
        let mut ran = false;
        let is_new = |trial: &&VariantTrial| self.trial(&trial.name.to_string()).is_none();
        let new: Vec<&VariantTrial> = trials.iter().filter(is_new).collect();
        for trial in new {
            let name = trial.name.to_string();
            // A variant may have a trial for each dtype; one that fails decides.
            if self.trial(&name) != Some(false)
                && let Some(passed) = try_variant(device, trial)
            {
                self.add_trial(&name, passed);
                ran = true;
            }
        }
        if ran {
            store(&self.text());
        }
    }

    /// The capabilities of the device without these variants. A forced variant stays, so that the
    /// driver's error is reported.
    pub fn apply<'c>(&self, caps: &'c DeviceCaps) -> Cow<'c, DeviceCaps> {
        let known = self.known();
        let refused = known.variants.iter().map(|(name, _)| name.clone());
        // The other trials are of features.
        let failed = known.trials.iter().filter(|(_, passed)| !passed);
        let failed = failed.filter_map(|(name, _)| name.parse().ok());
        let refused: Vec<VariantName> = refused.chain(failed).collect();
        if refused.is_empty() {
            return Cow::Borrowed(caps);
        }
        let mut switches = caps.device.switches.clone();
        for name in &refused {
            if switches.forced(&name.family) != Some(&name.variant) {
                switches = switches.forbid(name.clone());
            }
        }
        Cow::Owned(DeviceCaps {
            device: DeviceModel {
                switches,
                ..caps.device.clone()
            },
            ..caps.clone()
        })
    }

    /// Plans and loads a program. If the driver refuses a kernel, plans again without the variants
    /// that consist of the kernel, and passes the text form of the list to `store`. A variant that
    /// is measured ([`TuningTable::always`](crate::TuningTable::always)) is not replaced.
    ///
    /// # Errors
    /// Those of `plan` and `load`; [`CompileError::Kernel`] if no other variant is left.
    pub fn load<T>(
        &self,
        caps: &DeviceCaps,
        plan: impl Fn(&DeviceCaps) -> Result<GpuProgram, CompileError>,
        load: impl Fn(Arc<GpuProgram>) -> Result<T, CompileError>,
        store: impl Fn(&str),
    ) -> Result<T, CompileError> {
        if caps.device.tuning.is_always() {
            return load(Arc::new(plan(caps)?));
        }
        let mut refusal = None;
        loop {
            let program = match (plan(&self.apply(caps)), refusal.take()) {
                (Ok(program), _) => Arc::new(program),
                // The refused variant was the last one that supports the node.
                (Err(CompileError::Switch(_)), Some(e)) => return Err(e),
                // An earlier process found the refusals. The driver's error says more.
                (Err(e @ CompileError::Switch(SwitchError::AllForbidden { .. })), None) => {
                    return load(Arc::new(plan(caps).map_err(|_| e)?));
                }
                (Err(e), _) => return Err(e),
            };
            match load(Arc::clone(&program)) {
                Err(CompileError::Kernel { kernel, reason }) => {
                    if !self.add(&program, caps, &kernel, &reason) {
                        return Err(CompileError::Kernel { kernel, reason });
                    }
                    store(&self.text());
                    refusal = Some(CompileError::Kernel { kernel, reason });
                }
                loaded => return loaded,
            }
        }
    }

    /// Adds the variants of a program that consist of a kernel. False if there is none, so that
    /// planning again would not help.
    fn add(&self, program: &GpuProgram, caps: &DeviceCaps, kernel: &str, reason: &str) -> bool {
        let entries = &mut self.known().variants;
        let before = entries.len();
        for taken in program.variants.iter().filter(|taken| !taken.is_forced) {
            let mut kernels = taken
                .kernels
                .iter()
                .map(|id| &program.kernels[id.0 as usize]);
            let name = VariantName {
                family: taken.family.to_string(),
                variant: taken.variant.0.to_string(),
            };
            let is_new = entries.iter().all(|(known, _)| *known != name);
            if is_new && kernels.any(|k| k.name == kernel) {
                let reason: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                tracing::warn!(
                    target: NOTES,
                    "{}: the driver refuses {name}, the next variant of {} runs: {reason}",
                    caps.target,
                    name.family,
                );
                entries.push((name, reason));
            }
        }
        entries.len() > before
    }

    fn known(&self) -> MutexGuard<'_, Refusals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Target of the events that a program should show to its user.
pub const NOTES: &str = "tercet::notes";
