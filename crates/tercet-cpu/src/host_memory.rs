//! Free memory of the host.

/// Bytes that this process can still allocate: the available memory of the machine, or what its
/// container (cgroup) or its address-space limit (`ulimit -v`) leaves, whichever is least. `None`
/// on platforms that do not report free memory, such as browsers.
pub fn free_bytes() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "windows"))]
    {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        // Without `/proc`, as in a bare `chroot`, the size of the memory is unknown, and asking for
        // the limits of the container panics.
        let is_known = system.total_memory() > 0;
        let container = is_known.then(|| system.cgroup_limits()).flatten();
        // The container's own number counts cached files as used, which the system gives back.
        let container = container.map(|c| c.total_memory.saturating_sub(c.rss));
        let machine = Some(system.available_memory()).filter(|bytes| *bytes > 0);
        [machine, container, address_space()]
            .into_iter()
            .flatten()
            .min()
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "windows")))]
    None
}

/// Bytes below the limit of the process's address space; `None` without a limit.
#[cfg(target_os = "linux")]
fn address_space() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let status = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = status.split_ascii_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64)))
}

#[cfg(any(target_os = "macos", target_os = "windows"))]
fn address_space() -> Option<u64> {
    None
}
