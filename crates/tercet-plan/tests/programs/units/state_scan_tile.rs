//! Tests of the tiles of state scans.

use tercet_plan::DeviceCaps;
use tercet_plan::internals::state_scan::{MAX_STATES, ScanStepSizes, ScanTile};

type Made = (
    fn(ScanStepSizes, &DeviceCaps) -> ScanTile,
    fn(&ScanTile) -> usize,
);

#[test]
fn tiles_have_all_states_and_fit_the_shared_memory() {
    let made: [Made; 5] = [
        (
            |w, c| ScanTile::few_channels(w, c, false),
            ScanTile::selective_bytes,
        ),
        (
            |w, c| ScanTile::few_channels(w, c, true),
            ScanTile::selective_bytes,
        ),
        (ScanTile::many_channels, ScanTile::selective_bytes),
        (ScanTile::heads, ScanTile::heads_bytes),
        (ScanTile::delta, ScanTile::delta_bytes),
    ];
    let works = (0..=MAX_STATES).flat_map(|states| {
        [(1, 3), (64, 64), (999, 4096)].map(|(rows, channels)| ScanStepSizes {
            rows,
            channels,
            states,
        })
    });
    for work in works {
        for caps in [DeviceCaps::browser(), DeviceCaps::h200()] {
            for (of, bytes) in made {
                let tile = of(work, &caps);
                assert!(4 * tile.lanes * tile.quads >= work.states, "{tile:?}");
                assert!(2 * tile.lanes <= tile.threads, "{tile:?} has odd channels");
                assert!(bytes(&tile) <= caps.workgroup_bytes as usize, "{tile:?}");
            }
        }
    }
}
