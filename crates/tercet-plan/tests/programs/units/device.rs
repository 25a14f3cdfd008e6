//! Tests of the device properties that [`DeviceModel`] derives from the reported ones.

use tercet_plan::internals::cost_model::tile_configs;
use tercet_plan::{DeviceCaps, DeviceModel, GpuKind, ReportedProperties};

fn device_with(subgroups: [u32; 2], kind: GpuKind) -> DeviceModel {
    DeviceModel::new(&ReportedProperties {
        kind,
        subgroups: Some(subgroups),
        workgroup_bytes: 64 << 10,
        ..ReportedProperties::default()
    })
}

#[test]
fn units_that_nobody_says_are_guessed_once() {
    let unknown = |kind| {
        DeviceModel::new(&ReportedProperties {
            kind,
            ..ReportedProperties::default()
        })
        .units_or_typical()
    };
    assert_eq!(unknown(GpuKind::Unknown), 16);
    assert_eq!(unknown(GpuKind::Integrated), 16);
    assert_eq!(unknown(GpuKind::Discrete), 32);
    // A reported property of 0 counts as missing.
    let none = ReportedProperties {
        units: Some(0),
        ..ReportedProperties::default()
    };
    assert_eq!(DeviceModel::new(&none).units, None);
    let h200 = DeviceCaps::h200().device;
    assert_eq!((h200.units_or_typical(), h200.max_units()), (132, 132));
}

#[test]
fn registers_are_shared_where_subgroups_are_threads_of_the_hardware() {
    let arc = device_with([8, 32], GpuKind::Discrete);
    let registers = [8, 16, 32].map(|size| arc.registers_of(size));
    assert_eq!(registers, [127, 63, 31]);
    // On devices whose subgroup sizes do not start at 8, the number of registers per thread does
    // not depend on the subgroup size.
    let rdna = DeviceCaps::rdna3(64).device;
    assert_eq!([32, 64].map(|size| rdna.registers_of(size)), [256; 2]);
    assert_eq!(DeviceCaps::h200().device.registers_of(32), 255);
}

#[test]
fn measured_divisions_are_taken_as_they_are_where_they_were_measured() {
    let h200 = DeviceCaps::h200().device;
    let [divisions, windows, laid] = tile_configs(&h200);
    for table in [divisions, windows] {
        assert_eq!(h200.divisions([16; 3], 32, table), table);
    }
    assert_eq!(h200.divisions([8, 16, 16], 32, laid), laid);
}

#[test]
fn other_fragments_divide_sizes_in_elements_and_fit_the_registers() {
    let [table, ..] = tile_configs(&DeviceCaps::h200().device);
    // The accumulators of all table tiles fit into the registers of a 64-lane wave. Tiles larger
    // than those of the table are not tried.
    let rdna = DeviceCaps::rdna3(64).device;
    assert_eq!(rdna.divisions([16; 3], 64, table), table);
    let cases = [
        (device_with([8, 32], GpuKind::Discrete), [8, 16, 16], 16),
        (device_with([8, 32], GpuKind::Discrete), [8, 16, 16], 32),
        (device_with([8; 2], GpuKind::Software), [8; 3], 8),
        (device_with([32; 2], GpuKind::Integrated), [16; 3], 32),
    ];
    for (device, fragment, subgroup) in cases {
        let all = device.divisions(fragment, subgroup, table);
        assert!(!all.is_empty(), "{fragment:?} {subgroup}");
        for (at, d) in all.iter().enumerate() {
            let sums = d.subgroup_tile[0] * d.subgroup_tile[1] / subgroup;
            assert!(2 * sums <= device.registers_of(subgroup) + 1, "{d:?}");
            assert!(d.subgroup_tile[0].is_multiple_of(fragment[0]), "{d:?}");
            assert!(d.subgroup_tile[1].is_multiple_of(fragment[1]), "{d:?}");
            assert!(d.depth.is_multiple_of(fragment[2]), "{d:?}");
            assert!(
                !all[..at].iter().any(|other| other.is_same_division(d)),
                "{d:?} twice"
            );
            let row = table.iter().find(|row| row.is_same_division(d));
            assert!(row.is_none_or(|row| row == d), "{d:?} was measured");
            // Smaller subgroup tiles reuse each loaded element less.
            let best = table.iter().filter(|row| row.subgroups == d.subgroups);
            let best = best.map(|row| row.rate.full).fold(0.0, f64::max);
            assert!(row.is_some() || d.rate.full <= best / 2.0, "{d:?}");
        }
    }
}

#[test]
fn shared_memory_leaves_room_for_other_workgroups() {
    let several = |kind, workgroup_bytes| {
        let said = ReportedProperties {
            kind,
            workgroup_bytes,
            ..ReportedProperties::default()
        };
        DeviceModel::new(&said).multi_occupancy_shared_bytes >> 10
    };
    assert_eq!(several(GpuKind::Discrete, 48 << 10), 32);
    assert_eq!(several(GpuKind::Integrated, 32 << 10), 21);
    assert_eq!(several(GpuKind::Unknown, 16 << 10), 16);
    assert_eq!(several(GpuKind::Software, 32 << 10), 32);
    assert_eq!(
        DeviceCaps::h200().device.multi_occupancy_shared_bytes,
        32 << 10
    );
    assert_eq!(DeviceCaps::h200().device.resident_workgroups(9 << 10), 10);
}

#[test]
fn extensions_tell_units_and_registers() {
    let rdna3 = ReportedProperties::from_units([0, 96, 0], [768, 64, 2, 256]);
    assert_eq!((rdna3.units, rdna3.unit_lanes), (Some(96), Some(64)));
    assert_eq!(
        (rdna3.unit_registers, rdna3.registers),
        (Some(96 << 10), Some(256))
    );
    assert_eq!(
        ReportedProperties::from_units([0; 3], [0; 4]),
        ReportedProperties::default()
    );
    assert_eq!(
        ReportedProperties::from_units([132, 0, 0], [0; 4]).units,
        Some(132)
    );
}

#[test]
fn caches_grow_with_the_units() {
    let bytes = |kind, units| {
        let said = ReportedProperties {
            kind,
            units,
            ..ReportedProperties::default()
        };
        DeviceModel::new(&said).cache_bytes >> 20
    };
    assert_eq!(bytes(GpuKind::Discrete, Some(132)), 48);
    assert_eq!(bytes(GpuKind::Discrete, Some(32)), 12);
    assert_eq!(bytes(GpuKind::Unknown, None), 16);
    assert_eq!(bytes(GpuKind::Integrated, Some(12)), 4);
}
