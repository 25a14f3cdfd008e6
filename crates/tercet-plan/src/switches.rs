//! Switches of a GPU: its capabilities without the features that are turned off, and the kernel
//! variants that programs must or must not use.

use tercet_ir::{DeviceSwitches, SwitchError, SwitchableFeature, VariantFamily, VariantName};

use crate::caps::{CoopType, DeviceCaps};
use crate::lowerings::gemm_coop::CoopGemmTiling;
use crate::lowerings::variant_families;
use crate::native_ops::NativeOps;
use crate::tuning::TILINGS;

impl DeviceCaps {
    /// Returns the kernel families of this device with variants that a switch can force or forbid. A variant
    /// may need features that the device does not have.
    pub fn variant_families(&self) -> Vec<VariantFamily> {
        let mut all = variant_families();
        let mut tilings: Vec<String> = Vec::new();
        for ty in [CoopType::F16, CoopType::BF16] {
            for tiling in CoopGemmTiling::candidates(self, ty) {
                let name = tiling.to_string();
                if !tilings.contains(&name) {
                    tilings.push(name);
                }
            }
        }
        for &shape in &self.coop_wgsl {
            for tiling in CoopGemmTiling::wgsl_candidates(self, shape) {
                let name = tiling.to_string();
                if !tilings.contains(&name) {
                    tilings.push(name);
                }
            }
        }
        all.push(VariantFamily {
            name: TILINGS,
            variants: tilings,
        });
        all
    }

    /// These capabilities without the features that are turned off, and with the choices of kernel
    /// variants.
    ///
    /// # Errors
    /// [`SwitchError`] if a family or variant does not exist, or a tiling is named on a device
    /// without cooperative matrices, or is forbidden: only variants can be.
    pub fn switched(mut self, switches: &DeviceSwitches) -> Result<DeviceCaps, SwitchError> {
        let off = |feature| switches.is_off(feature);
        let is_wgpu = self.target == "wgpu";
        let no_matrices = off(SwitchableFeature::Coop) || off(SwitchableFeature::Subgroups);
        if no_matrices {
            self.coop_wgsl.clear();
        }
        if no_matrices || is_wgpu && off(SwitchableFeature::Passthrough) {
            self.coop.clear();
            self.coop_blocks.clear();
            self.coop_converts = false;
            self.coop_fragment_layout = false;
        }
        if off(SwitchableFeature::CoopBlocks) {
            self.coop_blocks.clear();
        }
        if off(SwitchableFeature::Chains) {
            self.ordered_dispatches = false;
        }
        if off(SwitchableFeature::Subgroups) {
            self.subgroup = None;
            self.shuffles = false;
        }
        if off(SwitchableFeature::Natives) {
            self.natives = NativeOps::default();
        }
        if off(SwitchableFeature::Dots) {
            self.packed_dots = false;
        }
        let families = self.variant_families();
        let is_tiling = |name: &&VariantName| name.family == TILINGS;
        let tilings = families.iter().find(|f| f.name == TILINGS);
        let refused = |given: &VariantName, reason: &str| SwitchError::Unavailable {
            given: given.clone(),
            reason: reason.to_string(),
            available: tilings.map_or(String::new(), |f| match f.variants.is_empty() {
                true => "no tiling".to_string(),
                false => f.variants.join(", "),
            }),
        };
        if let Some(given) = switches.forbidden_variants().iter().find(is_tiling) {
            return Err(refused(given, "a tiling can be forced but not forbidden"));
        }
        if let Some(given) = switches.forced_variants().iter().find(is_tiling)
            && self.coop.is_empty()
            && self.coop_wgsl.is_empty()
        {
            let reason = "it has no cooperative matrices, or they are turned off";
            return Err(refused(given, reason));
        }
        switches.check(self.target, &families)?;
        self.device.switches = switches.clone();
        Ok(self)
    }
}
