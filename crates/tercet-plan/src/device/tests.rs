//! What is derived of a device, and from what.

use super::*;
use crate::caps::Caps;

fn of(subgroups: [u32; 2], kind: Kind) -> Device {
    Device::of(&Said {
        kind,
        subgroups: Some(subgroups),
        workgroup_bytes: 64 << 10,
        ..Said::default()
    })
}

#[test]
fn units_that_nobody_says_are_guessed_once() {
    let unknown = |kind| {
        Device::of(&Said {
            kind,
            ..Said::default()
        })
        .units_or_typical()
    };
    assert_eq!(unknown(Kind::Unknown), 16);
    assert_eq!(unknown(Kind::Integrated), 16);
    assert_eq!(unknown(Kind::Discrete), 32);
    // Drivers that say none do not say.
    let none = Said {
        units: Some(0),
        ..Said::default()
    };
    assert_eq!(Device::of(&none).units, None);
    let h200 = Caps::h200().device;
    assert_eq!((h200.units_or_typical(), h200.units_at_most()), (132, 132));
}

#[test]
fn registers_are_shared_where_subgroups_are_threads_of_the_hardware() {
    let arc = of([8, 32], Kind::Discrete);
    let registers = [8, 16, 32].map(|size| arc.registers_of(size));
    assert_eq!(registers, [127, 63, 31]);
    // Elsewhere each lane has its own.
    let rdna = Caps::rdna3(64).device;
    assert_eq!([32, 64].map(|size| rdna.registers_of(size)), [256; 2]);
    assert_eq!(Caps::h200().device.registers_of(32), 255);
}

#[test]
fn measured_divisions_are_taken_as_they_are_where_they_were_measured() {
    let h200 = Caps::h200().device;
    for table in [h200.rates.matrices.divisions, h200.rates.matrices.windows] {
        assert_eq!(h200.divisions([16; 3], 32, table), table);
    }
    let laid = h200.rates.matrices.laid;
    assert_eq!(h200.divisions([8, 16, 16], 32, laid), laid);
}

#[test]
fn other_fragments_divide_sizes_in_elements_and_fit_the_registers() {
    let table = MEASURED.matrices.divisions;
    // As many sums as the registers of a wave of 64 hold: larger parts than those of the table are not tried.
    let rdna = Caps::rdna3(64).device;
    assert_eq!(rdna.divisions([16; 3], 64, table), table);
    let cases = [
        (of([8, 32], Kind::Discrete), [8, 16, 16], 16),
        (of([8, 32], Kind::Discrete), [8, 16, 16], 32),
        (of([8; 2], Kind::Software), [8; 3], 8),
        (of([32; 2], Kind::Integrated), [16; 3], 32),
    ];
    for (device, fragment, subgroup) in cases {
        let all = device.divisions(fragment, subgroup, table);
        assert!(!all.is_empty(), "{fragment:?} {subgroup}");
        for (at, d) in all.iter().enumerate() {
            let sums = d.part[0] * d.part[1] / subgroup;
            assert!(2 * sums <= device.registers_of(subgroup) + 1, "{d:?}");
            assert!(d.part[0].is_multiple_of(fragment[0]), "{d:?}");
            assert!(d.part[1].is_multiple_of(fragment[1]), "{d:?}");
            assert!(d.depth.is_multiple_of(fragment[2]), "{d:?}");
            assert!(
                !all[..at].iter().any(|other| other.is_like(d)),
                "{d:?} twice"
            );
            let row = table.iter().find(|row| row.is_like(d));
            assert!(row.is_none_or(|row| row == d), "{d:?} was measured");
            // Smaller parts are read more often for what they multiply.
            let best = table.iter().filter(|row| row.subgroups == d.subgroups);
            let best = best.map(|row| row.rate.full).fold(0.0, f64::max);
            assert!(row.is_some() || d.rate.full <= best / 2.0, "{d:?}");
        }
    }
}

#[test]
fn shared_memory_leaves_room_for_other_workgroups() {
    let several = |kind, workgroup_bytes| {
        let said = Said {
            kind,
            workgroup_bytes,
            ..Said::default()
        };
        Device::of(&said).several_bytes >> 10
    };
    assert_eq!(several(Kind::Discrete, 48 << 10), 32);
    assert_eq!(several(Kind::Integrated, 32 << 10), 21);
    assert_eq!(several(Kind::Unknown, 16 << 10), 16);
    assert_eq!(several(Kind::Software, 32 << 10), 32);
    assert_eq!(Caps::h200().device.several_bytes, 32 << 10);
    assert_eq!(Caps::h200().device.together(9 << 10), 10);
}

#[test]
fn extensions_tell_units_and_registers() {
    let rdna3 = Said::of_units([0, 96, 0], [768, 64, 2, 256]);
    assert_eq!((rdna3.units, rdna3.unit_lanes), (Some(96), Some(64)));
    assert_eq!(
        (rdna3.unit_registers, rdna3.registers),
        (Some(96 << 10), Some(256))
    );
    assert_eq!(Said::of_units([0; 3], [0; 4]), Said::default());
    assert_eq!(Said::of_units([132, 0, 0], [0; 4]).units, Some(132));
}

#[test]
fn caches_grow_with_the_units() {
    let bytes = |kind, units| {
        let said = Said {
            kind,
            units,
            ..Said::default()
        };
        Device::of(&said).cache_bytes >> 20
    };
    assert_eq!(bytes(Kind::Discrete, Some(132)), 48);
    assert_eq!(bytes(Kind::Discrete, Some(32)), 12);
    assert_eq!(bytes(Kind::Unknown, None), 16);
    assert_eq!(bytes(Kind::Integrated, Some(12)), 4);
}
