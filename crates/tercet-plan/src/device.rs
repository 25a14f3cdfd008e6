//! What a device is like, as far as that decides which of several right ways is fastest.
//!
//! [`Caps`](crate::Caps) say what a device can do; a [`Device`] says how much of it there is. It is made in one place,
//! [`Device::of`], from what a driver [`Said`]; what it does not say is derived, as the fields tell. What was measured
//! stands in one table (`device/rates.rs`), by the device that it was measured on, and a [`Tuning`] table of the device
//! itself goes before it. No other file has a number of a device.
//!
//! Next: `device/rates.rs`, `device/profiles.rs` for the devices that tests plan for without having them.

mod profiles;
pub(crate) mod rates;

use self::rates::{Division, MEASURED, Rates};
use crate::tuning::Tuning;

/// What a device is built into, as drivers tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A card with memory of its own.
    Discrete,
    /// Beside a processor, with its memory.
    Integrated,
    /// The processor itself.
    Software,
    /// Nobody says, as in browsers.
    #[default]
    Unknown,
}

/// What a driver says of a device; `None` where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// What it is built into.
    pub kind: Kind,
    /// Units that run workgroups side by side.
    pub units: Option<u32>,
    /// Lanes of a unit that each add and multiply an F32 number in a cycle.
    pub unit_lanes: Option<u32>,
    /// 32-bit registers of a unit.
    pub unit_registers: Option<u32>,
    /// The most 32-bit registers of an invocation, in subgroups of the greatest size.
    pub registers: Option<u32>,
    /// The least and the greatest size of a subgroup.
    pub subgroups: Option<[u32; 2]>,
    /// Shared memory that a workgroup may have.
    pub workgroup_bytes: u32,
}

impl Said {
    /// What extensions of Vulkan say of the units, with 0 where a driver has none of them: how many there are, by any of
    /// several; of AMD's `shader_core_properties` the vector registers of a SIMD unit in waves, the size of these waves, the
    /// SIMD units of a compute unit, and the most registers of an invocation.
    pub fn of_units(units: [u32; 3], amd: [u32; 4]) -> Said {
        let said = |n: u32| Some(n).filter(|n| *n > 0);
        let [registers, wave, simds, most] = amd;
        Said {
            units: units.into_iter().find_map(said),
            // A compute unit has 64 lanes, in waves of any size.
            unit_lanes: said(simds).map(|_| 64),
            unit_registers: said(registers.saturating_mul(wave).saturating_mul(simds)),
            registers: said(most),
            ..Said::default()
        }
    }
}

/// The description of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// What it is built into.
    pub kind: Kind,
    /// Units that run workgroups side by side, where the driver says; see [`Device::units_or_typical`].
    pub units: Option<u32>,
    /// Lanes of a unit that each add and multiply an F32 number in a cycle. Where the driver does not say: 128, as most
    /// have today.
    pub unit_lanes: u32,
    /// The most 32-bit registers of an invocation in a subgroup of [`Device::register_lanes`]. Where the driver does not
    /// say: 255 where a GPU is a card or nobody knows, half of that beside a processor.
    pub registers: u32,
    /// The size of subgroups at which an invocation has these registers. Where subgroups have several sizes from 8 on,
    /// the hardware's threads have a fixed number of registers each, so that a subgroup of twice the size leaves half of
    /// them to an invocation; there it is the least size, otherwise the greatest.
    pub register_lanes: u32,
    /// 32-bit registers of a unit: 65536, as most have, where the driver does not say.
    pub unit_registers: u32,
    /// Shared memory of a unit. No driver says; derived: twice what a workgroup may have.
    pub unit_shared_bytes: u32,
    /// Shared memory of a workgroup that leaves room for others on its unit. Derived: a third of the unit's, at least
    /// 16 KiB, which every device has, at most 32 KiB, beyond which nothing was gained where it was measured; on a
    /// processor, which has none, the latter.
    pub several_bytes: u32,
    /// The least and the greatest size of a subgroup. Where the driver does not say: what WebGPU allows.
    pub subgroups: [u32; 2],
    /// The cache that all units share. No driver says; derived: what is beside a processor has 4 MiB, else there are 384 KiB
    /// for each unit up to 48 MiB, as where it was measured, or 16 MiB where nobody says how many units there are.
    pub cache_bytes: u64,
    /// How fast kernels were found to be, on this device or on the one of the table that is nearest.
    pub(crate) rates: &'static Rates,
    /// What was measured on this device itself, by `tercet tune`.
    pub tuning: Tuning,
}

/// Units of a device that does not say how many it has: what is beside a processor has 4 to 32, cards have more.
const TYPICAL_UNITS: usize = 16;
const TYPICAL_UNITS_OF_CARDS: usize = 32;
/// The units of the largest devices, rounded up: for what costs little where there are fewer.
const MOST_UNITS: usize = 256;
/// Subgroups that WebGPU allows.
const ANY_SUBGROUPS: [u32; 2] = [4, 128];
const UNIT_LANES: u32 = 128;
const UNIT_REGISTERS: u32 = 64 << 10;
const LEAST_SHARED_BYTES: u32 = 16 << 10;
const MOST_SEVERAL_BYTES: u32 = 32 << 10;

impl Device {
    /// The description of a device by what its driver says, before anything was measured on it.
    pub fn of(said: &Said) -> Device {
        let subgroups = said.subgroups.unwrap_or(ANY_SUBGROUPS);
        let is_software = said.kind == Kind::Software;
        let shares_registers = subgroups[0] == 8 && subgroups[1] > 8 && !is_software;
        let is_beside = said.kind == Kind::Integrated;
        let unit_shared_bytes = said.workgroup_bytes.saturating_mul(2);
        let several_bytes = match said.kind {
            Kind::Software => MOST_SEVERAL_BYTES,
            Kind::Discrete | Kind::Integrated | Kind::Unknown => {
                (unit_shared_bytes / 3).clamp(LEAST_SHARED_BYTES, MOST_SEVERAL_BYTES)
            }
        };
        Device {
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
            several_bytes: several_bytes.min(said.workgroup_bytes),
            subgroups,
            cache_bytes: match (is_beside, said.units) {
                (true, _) => 4 << 20,
                (false, Some(units)) => (u64::from(units) * (384 << 10)).clamp(4 << 20, 48 << 20),
                (false, None) => 16 << 20,
            },
            rates: &MEASURED,
            tuning: Tuning::default(),
        }
    }

    /// The units, or as many as such devices have where the driver does not say.
    pub fn units_or_typical(&self) -> usize {
        match (self.units, self.kind) {
            (Some(units), _) => units as usize,
            (None, Kind::Discrete) => TYPICAL_UNITS_OF_CARDS,
            (None, Kind::Integrated | Kind::Software | Kind::Unknown) => TYPICAL_UNITS,
        }
    }

    /// The units, or as many as the largest devices have where the driver does not say: where too few workgroups
    /// cost more than too many.
    pub fn units_at_most(&self) -> usize {
        self.units.map_or(MOST_UNITS, |units| units as usize)
    }

    /// The most 32-bit registers of an invocation in subgroups of this size.
    pub fn registers_of(&self, subgroup: u32) -> u32 {
        let lanes = self.register_lanes.max(1);
        match subgroup > lanes {
            true => ((self.registers + 1) * lanes / subgroup).saturating_sub(1),
            false => self.registers,
        }
    }

    /// The 32-bit numbers of fragments that an invocation should hold: addresses and what is on its way take about a
    /// fifth of its registers, 55 of 255 where it was measured.
    pub(crate) fn held(&self, subgroup: u32) -> u32 {
        self.registers_of(subgroup) * 200 / 255
    }

    /// Invocations of a unit that have so many registers each.
    pub(crate) fn unit_invocations(&self, registers: u32) -> u32 {
        self.unit_registers / registers.max(1)
    }

    /// Workgroups of so much shared memory that a unit runs side by side.
    pub(crate) fn together(&self, shared_bytes: u32) -> u32 {
        (self.unit_shared_bytes / shared_bytes.max(1)).max(1)
    }

    /// The divisions of a table that subgroups of this size can run with such fragments, with their rates.
    ///
    /// A part of a tile takes at most half of the registers for its sums. The table's sizes are elements, which other
    /// fragments divide as well. Parts that are too large come at half the size along both axes, until they fit; they
    /// multiply each number that they load half as often, so that their rates are half of those of the whole. What the
    /// table has itself goes before what is derived.
    pub(crate) fn divisions(
        &self,
        fragment: [u32; 3],
        subgroup: u32,
        table: &[Division],
    ) -> Vec<Division> {
        let most = self.registers_of(subgroup).div_ceil(2) * subgroup;
        let divides = |d: &Division| {
            let [m, n, k] = fragment;
            d.part[0].is_multiple_of(m) && d.part[1].is_multiple_of(n) && d.depth.is_multiple_of(k)
        };
        let fits = |d: &Division| d.part[0] * d.part[1] <= most;
        let halves = table.iter().map(|d| {
            let mut d = *d;
            while !fits(&d) && d.part[0] > 1 {
                d = d.half();
            }
            d
        });
        let (own, derived): (Vec<Division>, Vec<Division>) = halves
            .filter(divides)
            .partition(|d| table.iter().any(|row| row == d));
        let mut all = own;
        for d in derived {
            if !all.iter().any(|known| known.is_like(&d)) {
                all.push(d);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
