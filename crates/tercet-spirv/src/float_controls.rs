//! Requires that a module preserves signed zeros, infinities, NaN and subnormal numbers.
//!
//! By default Vulkan permits drivers to assume that floats are finite and that zeros have no sign:
//! they may replace `x - x` by 0 and `x + 0` by `x`. The execution mode `SignedZeroInfNanPreserve`
//! of `SPV_KHR_float_controls` forbids both. Without `DenormPreserve`, drivers may also replace
//! subnormal numbers by 0. Neither naga nor glslang writes these execution modes, so they are
//! added to the modules of both when they are loaded.

use crate::layout::{HEADER, SpirvInstructions};

const OP_EXTENSION: u32 = 10;
const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_FLOAT: u32 = 22;
const OP_FUNCTION: u32 = 54;

const CAPABILITY_PRESERVE: u32 = 4466;
const MODE_PRESERVE: u32 = 4461;
const CAPABILITY_DENORM_PRESERVE: u32 = 4464;
const MODE_DENORM_PRESERVE: u32 = 4459;

/// `OpExtension "SPV_KHR_float_controls"`.
const EXTENSION: [u32; 7] = [
    7 << 16 | OP_EXTENSION,
    u32::from_le_bytes(*b"SPV_"),
    u32::from_le_bytes(*b"KHR_"),
    u32::from_le_bytes(*b"floa"),
    u32::from_le_bytes(*b"t_co"),
    u32::from_le_bytes(*b"ntro"),
    u32::from_le_bytes(*b"ls\0\0"),
];

/// The special values that a device can preserve, as its driver reports them
/// (`VkPhysicalDeviceFloatControlsProperties`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatControls {
    /// Signed zeros, infinities and NaN of 16-bit floats.
    pub preserve_f16: bool,
    /// Signed zeros, infinities and NaN of 32-bit floats.
    pub preserve_f32: bool,
    /// Subnormal numbers of 16-bit floats.
    pub preserve_denorm_f16: bool,
    /// Subnormal numbers of 32-bit floats.
    pub preserve_denorm_f32: bool,
    /// Whether the mode of subnormal 32-bit floats may differ from that of other widths.
    pub independent_denorm_f32: bool,
}

impl FloatControls {
    /// The module with `SignedZeroInfNanPreserve` for each float width that it declares and the
    /// device supports, and with `DenormPreserve` if it declares 32-bit floats. If the device has one
    /// mode of subnormal numbers for all widths, each declared width gets it, or none does. A module
    /// that already has the mode, or declares no float of these widths, is unchanged.
    #[must_use]
    pub fn apply(self, module: Vec<u32>) -> Vec<u32> {
        let (mut capability_end, mut entry_end) = (HEADER, HEADER);
        let (mut entry_points, mut widths, mut declared) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = HEADER;
        for instruction in SpirvInstructions(module.get(HEADER..).unwrap_or_default()) {
            let end = at + instruction.len();
            match (instruction[0] & 0xffff, instruction) {
                (OP_CAPABILITY, [_, CAPABILITY_PRESERVE]) => return module,
                (OP_CAPABILITY, _) => capability_end = end,
                (OP_ENTRY_POINT, [_, _, function, ..]) => {
                    entry_points.push(*function);
                    entry_end = end;
                }
                // A fourth word names another encoding, such as bfloat16.
                (OP_TYPE_FLOAT, [_, _, width]) => {
                    declared.push(*width);
                    widths.extend(self.preserves(*width).then_some(*width));
                }
                (OP_FUNCTION, _) => break,
                _ => {}
            }
            at = end;
        }
        if widths.is_empty() || entry_points.is_empty() {
            return module;
        }
        let denorm_widths = self.denorm_widths(&declared);
        let mut capability = vec![2 << 16 | OP_CAPABILITY, CAPABILITY_PRESERVE];
        if !denorm_widths.is_empty() {
            capability.extend([2 << 16 | OP_CAPABILITY, CAPABILITY_DENORM_PRESERVE]);
        }
        let mut modes = Vec::new();
        for function in entry_points {
            let head = 4 << 16 | OP_EXECUTION_MODE;
            for &width in &widths {
                modes.extend([head, function, MODE_PRESERVE, width]);
            }
            for &width in &denorm_widths {
                modes.extend([head, function, MODE_DENORM_PRESERVE, width]);
            }
        }
        let mut all = module[..capability_end].to_vec();
        all.extend(capability);
        all.extend(EXTENSION);
        all.extend(&module[capability_end..entry_end]);
        all.extend(modes);
        all.extend(&module[entry_end..]);
        all
    }

    /// The float widths whose subnormal numbers a module with floats of the widths `declared`
    /// preserves.
    fn denorm_widths(self, declared: &[u32]) -> Vec<u32> {
        let keeps = |width: &u32| match width {
            16 => self.preserve_denorm_f16,
            32 => self.preserve_denorm_f32,
            _ => false,
        };
        if !declared.contains(&32) {
            return Vec::new();
        }
        match self.independent_denorm_f32 {
            true => [32].into_iter().filter(keeps).collect(),
            false if declared.iter().all(keeps) => declared.to_vec(),
            false => Vec::new(),
        }
    }

    fn preserves(self, width: u32) -> bool {
        match width {
            16 => self.preserve_f16,
            32 => self.preserve_f32,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{ENTRY, RuntimeChecks, lower};

    const ALL: FloatControls = FloatControls {
        preserve_f16: true,
        preserve_f32: true,
        preserve_denorm_f16: true,
        preserve_denorm_f32: true,
        independent_denorm_f32: true,
    };

    fn module(body: &str) -> Vec<u32> {
        let text = format!(
            "@group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(64)
            fn main(@builtin(local_invocation_index) i: u32) {{ y[i] = {body}; }}"
        );
        lower(&text, ENTRY, RuntimeChecks::None).unwrap()
    }

    /// The opcodes of a module.
    fn opcodes(module: &[u32]) -> Vec<u32> {
        let all = SpirvInstructions(&module[HEADER..]);
        all.map(|i| i[0] & 0xffff).collect()
    }

    #[test]
    fn modules_with_floats_preserve_special_values() {
        let plain = module("bitcast<u32>(bitcast<f32>(y[i]) - 1.0)");
        let made = ALL.apply(plain.clone());
        let added = made.len() - plain.len();
        assert_eq!(added, 2 * 2 + EXTENSION.len() + 2 * 4);
        let mode = made
            .windows(3)
            .position(|w| w[0] == (4 << 16 | OP_EXECUTION_MODE))
            .unwrap();
        assert_eq!(made[mode + 2..mode + 4], [MODE_PRESERVE, 32]);
        assert_eq!(made[mode + 6..mode + 8], [MODE_DENORM_PRESERVE, 32]);
        let flushing = FloatControls {
            preserve_denorm_f32: false,
            ..ALL
        };
        assert_eq!(flushing.apply(plain.clone()).len() + 6, made.len());
        // Capabilities, extensions, entry points and modes are in the order of SPIR-V's sections.
        let order = opcodes(&made);
        let last = |op| order.iter().rposition(|o| *o == op).unwrap();
        let first = |op| order.iter().position(|o| *o == op).unwrap();
        assert!(last(OP_CAPABILITY) < first(OP_EXTENSION));
        assert!(last(OP_EXTENSION) < first(OP_ENTRY_POINT));
        assert!(last(OP_ENTRY_POINT) < first(OP_EXECUTION_MODE));
        let name: Vec<u8> = EXTENSION[1..]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert_eq!(name, b"SPV_KHR_float_controls\0\0");
        assert_eq!(ALL.apply(made.clone()), made);
    }

    #[test]
    fn widths_share_a_mode_of_subnormal_numbers_if_the_device_has_one() {
        let one_mode = FloatControls {
            independent_denorm_f32: false,
            ..ALL
        };
        assert_eq!(ALL.denorm_widths(&[16, 32, 64]), [32]);
        assert_eq!(one_mode.denorm_widths(&[16, 32]), [16, 32]);
        assert_eq!(one_mode.denorm_widths(&[32]), [32]);
        assert_eq!(one_mode.denorm_widths(&[32, 64]), [0u32; 0]);
        assert_eq!(one_mode.denorm_widths(&[16]), [0u32; 0]);
        let flushes = FloatControls {
            preserve_denorm_f16: false,
            ..one_mode
        };
        assert_eq!(flushes.denorm_widths(&[16, 32]), [0u32; 0]);
        assert_eq!(flushes.denorm_widths(&[32]), [32]);
    }

    #[test]
    fn other_modules_stay_unchanged() {
        let integers = module("y[i] + 1u");
        assert_eq!(ALL.apply(integers.clone()), integers);
        let floats = module("bitcast<u32>(bitcast<f32>(y[i]) - 1.0)");
        let narrow = FloatControls {
            preserve_f32: false,
            ..ALL
        };
        for controls in [FloatControls::default(), narrow] {
            assert_eq!(controls.apply(floats.clone()), floats);
        }
        for len in 0..12 {
            assert_eq!(ALL.apply(floats[..len].to_vec()), floats[..len]);
        }
    }
}
