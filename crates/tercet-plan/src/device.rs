//! Performance model of a device: the quantities that decide which of several applicable variants
//! is fastest.
//!
//! [`DeviceCaps`](crate::DeviceCaps) holds the features and limits of a device; a [`DeviceModel`]
//! holds its sizes and speeds. Only [`DeviceModel::new`] creates a [`DeviceModel`], from the
//! properties that a driver reports ([`ReportedProperties`]). The documentation of each field says
//! how the field is derived if the driver does not report it. Measured kernel rates are in
//! `device/cost_model.rs`, one table row per measured device. Autotuning results of the device
//! ([`TuningTable`]) take precedence over the measured kernel rates. No file outside `device/`
//! contains device-specific numbers.
//!
//! Next: `device/cost_model.rs` for the measured kernel rates, `device/profiles.rs` for the devices
//! that tests plan for.

pub(crate) mod cost_model;
mod profiles;

use self::cost_model::{CostModel, MEASURED, TileConfig};
use crate::tuning::{TILINGS, TuningKey, TuningTable};
use tercet_ir::DeviceSwitches;

/// Class of a device, as its driver reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuKind {
    /// A discrete GPU with dedicated memory.
    Discrete,
    /// An integrated GPU that shares the memory of the CPU.
    Integrated,
    /// A software implementation that runs on the CPU.
    Software,
    /// The driver does not report the class of the device, as in browsers.
    #[default]
    Unknown,
}

/// Device properties as the driver reports them; `None` if a driver does not report a property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedProperties {
    /// Class of the device.
    pub kind: GpuKind,
    /// Number of compute units (SMs), which run workgroups in parallel.
    pub units: Option<u32>,
    /// Number of lanes per compute unit; each lane performs one F32 multiply-add per cycle.
    pub unit_lanes: Option<u32>,
    /// Number of 32-bit registers per compute unit.
    pub unit_registers: Option<u32>,
    /// Maximum number of 32-bit registers per thread, at the largest subgroup size.
    pub registers: Option<u32>,
    /// Smallest and largest subgroup size of the device.
    pub subgroups: Option<[u32; 2]>,
    /// Shared memory available to one workgroup, in bytes.
    pub workgroup_bytes: u32,
}

impl ReportedProperties {
    /// Compute-unit properties from Vulkan extensions; 0 marks a missing extension. `units` holds
    /// the number of compute units according to each extension, of which the first nonzero number
    /// is used. `amd` comes from the extension `shader_core_properties`: wave-wide vector registers
    /// per SIMD, wave size, SIMDs per compute unit, and maximum number of registers per thread.
    pub fn from_units(units: [u32; 3], amd: [u32; 4]) -> ReportedProperties {
        let said = |n: u32| Some(n).filter(|n| *n > 0);
        let [registers, wave, simds, most] = amd;
        ReportedProperties {
            units: units.into_iter().find_map(said),
            // An AMD compute unit has 64 lanes for every wave size.
            unit_lanes: said(simds).map(|_| 64),
            unit_registers: said(registers.saturating_mul(wave).saturating_mul(simds)),
            registers: said(most),
            ..ReportedProperties::default()
        }
    }
}

/// Performance model of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// Class of the device.
    pub kind: GpuKind,
    /// Number of compute units (SMs), which run workgroups in parallel; `None` if the driver does
    /// not report it (see [`DeviceModel::units_or_typical`]).
    pub units: Option<u32>,
    /// Number of lanes per compute unit; each lane performs one F32 multiply-add per cycle. The
    /// default is 128 lanes, the most common number.
    pub unit_lanes: u32,
    /// Maximum number of 32-bit registers per thread at subgroup size
    /// [`DeviceModel::register_lanes`]. The default is 255 registers for discrete and unknown GPUs
    /// and 127 for integrated GPUs.
    pub registers: u32,
    /// Subgroup size for which `registers` gives the maximum number of registers per thread. On
    /// some GPUs, whose subgroup sizes start at 8, a hardware thread has a fixed number of
    /// registers. There, doubling the subgroup size halves the registers per thread, and
    /// `register_lanes` is the smallest subgroup size. On all other GPUs, `register_lanes` is the
    /// largest subgroup size.
    pub register_lanes: u32,
    /// Number of 32-bit registers per compute unit. The default is 65536 registers, the most common
    /// number.
    pub unit_registers: u32,
    /// Shared memory per compute unit in bytes. No driver reports the shared memory per compute
    /// unit; it is derived as twice the limit of one workgroup.
    pub unit_shared_bytes: u32,
    /// Shared memory that a workgroup should use at most, so that further workgroups fit on the
    /// same unit. The size is one third of the unit's shared memory, clamped to 16..32 KiB: every
    /// device has 16 KiB, and measurements show no gain above 32 KiB. For a CPU, which has no
    /// shared memory, the size is 32 KiB.
    pub multi_occupancy_shared_bytes: u32,
    /// Smallest and largest subgroup size of the device. The default is the range of subgroup sizes
    /// that WebGPU allows.
    pub subgroups: [u32; 2],
    /// Size in bytes of the cache that all compute units share. No driver reports it. The cache
    /// size is derived: 4 MiB for integrated GPUs, otherwise 384 KiB per compute unit (the ratio of
    /// the measured device), at most 48 MiB. If the number of compute units is unknown, a cache
    /// size of 16 MiB is assumed.
    pub cache_bytes: u64,
    /// Cost model: kernel rates measured on this device, or on the most similar measured device.
    pub(crate) rates: &'static CostModel,
    /// Autotuning results for this device, as measured by `tercet tune`.
    pub tuning: TuningTable,
    /// Features that are turned off, and kernel variants that are forced or forbidden.
    pub switches: DeviceSwitches,
}

/// Assumed number of compute units if the driver does not report it. Integrated GPUs have 4 to 32
/// compute units, discrete cards have more.
const TYPICAL_UNITS: usize = 16;
const TYPICAL_UNITS_OF_CARDS: usize = 32;
/// Number of compute units of the largest devices, rounded up. Planning uses this number where an
/// overestimate costs little.
const MAX_UNITS: usize = 256;
/// Smallest and largest subgroup size that WebGPU allows.
const ANY_SUBGROUPS: [u32; 2] = [4, 128];
const UNIT_LANES: u32 = 128;
const UNIT_REGISTERS: u32 = 64 << 10;
const MIN_SHARED_BYTES: u32 = 16 << 10;
const MAX_MULTI_OCCUPANCY_BYTES: u32 = 32 << 10;

impl DeviceModel {
    /// Derives the performance model from the properties that a driver reports, without autotuning
    /// results.
    pub fn new(said: &ReportedProperties) -> DeviceModel {
        let subgroups = said.subgroups.unwrap_or(ANY_SUBGROUPS);
        let is_software = said.kind == GpuKind::Software;
        let shares_registers = subgroups[0] == 8 && subgroups[1] > 8 && !is_software;
        let is_beside = said.kind == GpuKind::Integrated;
        let unit_shared_bytes = said.workgroup_bytes.saturating_mul(2);
        let several_bytes = match said.kind {
            GpuKind::Software => MAX_MULTI_OCCUPANCY_BYTES,
            GpuKind::Discrete | GpuKind::Integrated | GpuKind::Unknown => {
                (unit_shared_bytes / 3).clamp(MIN_SHARED_BYTES, MAX_MULTI_OCCUPANCY_BYTES)
            }
        };
        DeviceModel {
            kind: said.kind,
            units: said.units.filter(|units| *units > 0),
            unit_lanes: said.unit_lanes.unwrap_or(UNIT_LANES),
            registers: match (said.registers, is_beside || shares_registers) {
                (Some(registers), _) => registers,
                (None, true) => 127,
                (None, false) => 255,
            },
            register_lanes: match shares_registers && said.registers.is_none() {
                true => subgroups[0],
                false => subgroups[1],
            },
            unit_registers: said.unit_registers.unwrap_or(UNIT_REGISTERS),
            unit_shared_bytes,
            multi_occupancy_shared_bytes: several_bytes.min(said.workgroup_bytes),
            subgroups,
            cache_bytes: match (is_beside, said.units) {
                (true, _) => 4 << 20,
                (false, Some(units)) => (u64::from(units) * (384 << 10)).clamp(4 << 20, 48 << 20),
                (false, None) => 16 << 20,
            },
            rates: &MEASURED,
            tuning: TuningTable::default(),
            switches: DeviceSwitches::default(),
        }
    }

    /// The tiling of a matmul on cooperative matrices that a switch or the autotuning table names.
    pub(crate) fn named_tiling(&self, key: impl FnOnce() -> TuningKey) -> Option<&str> {
        let forced = self.switches.forced(TILINGS);
        forced.or_else(|| self.tuning.find(key))
    }

    /// Number of compute units; a typical number for this class of device if the driver does not
    /// report it.
    pub fn units_or_typical(&self) -> usize {
        match (self.units, self.kind) {
            (Some(units), _) => units as usize,
            (None, GpuKind::Discrete) => TYPICAL_UNITS_OF_CARDS,
            (None, GpuKind::Integrated | GpuKind::Software | GpuKind::Unknown) => TYPICAL_UNITS,
        }
    }

    /// Number of compute units; that of the largest devices if the driver does not report it.
    /// Planning uses this number where too few workgroups cost more time than too many.
    pub fn max_units(&self) -> usize {
        self.units.map_or(MAX_UNITS, |units| units as usize)
    }

    /// Maximum number of 32-bit registers per thread at this subgroup size.
    pub fn registers_of(&self, subgroup: u32) -> u32 {
        let lanes = self.register_lanes.max(1);
        match subgroup > lanes {
            true => ((self.registers + 1) * lanes / subgroup).saturating_sub(1),
            false => self.registers,
        }
    }

    /// Number of 32-bit registers that a thread should use at most for matrix fragments. Addresses
    /// and prefetched loads take about one fifth of a thread's registers (measured: 55 of 255).
    pub(crate) fn max_fragment_registers(&self, subgroup: u32) -> u32 {
        self.registers_of(subgroup) * 200 / 255
    }

    /// Number of threads that fit on one compute unit if each uses `registers` registers.
    pub(crate) fn unit_invocations(&self, registers: u32) -> u32 {
        self.unit_registers / registers.max(1)
    }

    /// Number of workgroups that run concurrently on one compute unit if each uses `shared_bytes`
    /// of shared memory.
    #[doc(hidden)]
    pub fn resident_workgroups(&self, shared_bytes: u32) -> u32 {
        (self.unit_shared_bytes / shared_bytes.max(1)).max(1)
    }

    /// The matmul tile configurations of a table that this device can run with this fragment shape
    /// and subgroup size, with their rates.
    ///
    /// The accumulators of a subgroup tile use at most half of the registers. The table gives tile
    /// sizes in elements, so devices with other fragment shapes can use them, too. A subgroup tile
    /// that is too large is halved along both axes until it fits. Subgroup tiles of half the size
    /// reuse each loaded element half as often, so their rate is halved. Unchanged configurations
    /// of the table come first, halved ones last.
    #[doc(hidden)]
    pub fn divisions(
        &self,
        fragment: [u32; 3],
        subgroup: u32,
        table: &[TileConfig],
    ) -> Vec<TileConfig> {
        let most = self.registers_of(subgroup).div_ceil(2) * subgroup;
        let divides = |d: &TileConfig| {
            let [m, n, k] = fragment;
            d.subgroup_tile[0].is_multiple_of(m)
                && d.subgroup_tile[1].is_multiple_of(n)
                && d.depth.is_multiple_of(k)
        };
        let fits = |d: &TileConfig| d.subgroup_tile[0] * d.subgroup_tile[1] <= most;
        let halves = table.iter().map(|d| {
            let mut d = *d;
            while !fits(&d) && d.subgroup_tile[0] > 1 {
                d = d.half();
            }
            d
        });
        let (own, derived): (Vec<TileConfig>, Vec<TileConfig>) = halves
            .filter(divides)
            .partition(|d| table.iter().any(|row| row == d));
        let mut all = own;
        for d in derived {
            if !all.iter().any(|known| known.is_same_division(&d)) {
                all.push(d);
            }
        }
        all
    }
}
