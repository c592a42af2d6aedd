//! Examines every pair of devices and reports the obstacles.

use crate::capture;
use crate::host::{Device, Host};
use crate::known::{Known, Role};
use crate::obstacle::{Obstacles, redirecting};
use crate::report::{
    Count, DeviceKind, DeviceReport, HostReport, PairKind, PairReport, Report, SCHEMA, Series,
    VERSION, Works,
};
use crate::rules::{self, Route, Verdict};
use crate::words;

mod in_place;
mod path;

/// A pair of devices under examination.
struct Pair<'a> {
    number: usize,
    kind: PairKind,
    provider: &'a Device,
    client: &'a Device,
    route: Route,
}

/// Makes the whole report about a host.
pub fn diagnose(host: &Host, known: &Known) -> Report {
    let of_role = |role| -> Vec<&Device> {
        let all = host.devices.values();
        all.filter(|device| host.role(known, device) == Some(role))
            .collect()
    };
    let (gpus, nics, disks) = (of_role(Role::Gpu), of_role(Role::Nic), of_role(Role::Nvme));
    let pairs = pairs(host, known, &gpus, &nics, &disks);
    let mut obstacles = Obstacles::default();
    for pair in &pairs {
        path::look(host, known, pair, &mut obstacles);
        if pair.kind == PairKind::GpuNic {
            in_place::look(host, known, pair, &mut obstacles);
        }
    }
    for gpu in gpus.iter().filter(|_| nics.is_empty()) {
        in_place::alone(host, known, gpu, &mut obstacles);
    }
    let names: Vec<_> = pairs
        .iter()
        .map(|pair| format!("{} {}", pair.provider.address, pair.client.address))
        .collect();
    let (obstacles, of_pairs) = obstacles.ranked(&names);
    let told = pairs.iter().zip(of_pairs).map(|(pair, ids)| {
        let effects = ids.iter().map(|id| obstacles[id - 1].effect);
        pair_report(host, pair, &effects.collect::<Vec<_>>(), &ids)
    });
    let pairs = told.collect();
    let kinds = [
        (DeviceKind::Gpu, gpus),
        (DeviceKind::Nic, nics),
        (DeviceKind::Nvme, disks),
    ];
    let devices = kinds.into_iter().flat_map(|(kind, devices)| {
        let told = |device: &&Device| device_told(known, kind, device);
        devices.iter().map(told).collect::<Vec<_>>()
    });
    Report {
        schema: SCHEMA,
        version: VERSION,
        host: host_told(host, known),
        devices: devices.collect(),
        pairs,
        obstacles,
    }
}

fn pairs<'a>(
    host: &Host,
    known: &Known,
    gpus: &[&'a Device],
    nics: &[&'a Device],
    disks: &[&'a Device],
) -> Vec<Pair<'a>> {
    let mut pairs = Vec::new();
    let mut add = |kind, provider: &'a Device, client: &'a Device| {
        pairs.push(Pair {
            number: pairs.len(),
            kind,
            provider,
            client,
            route: rules::route(host, known, provider, client),
        });
    };
    for gpu in gpus {
        for nic in nics {
            add(PairKind::GpuNic, gpu, nic);
        }
    }
    for (n, gpu) in gpus.iter().enumerate() {
        for other in &gpus[n + 1..] {
            add(PairKind::GpuGpu, gpu, other);
        }
    }
    for gpu in gpus {
        for disk in disks {
            add(PairKind::GpuNvme, gpu, disk);
        }
    }
    for disk in disks.iter().filter(|disk| disk.published) {
        for nic in nics {
            add(PairKind::NvmeNic, disk, nic);
        }
    }
    pairs
}

fn pair_report(
    host: &Host,
    pair: &Pair<'_>,
    effects: &[crate::report::Effect],
    ids: &[usize],
) -> PairReport {
    use crate::report::Effect;
    let works = if effects.contains(&Effect::Blocks) {
        Works::No
    } else if effects.contains(&Effect::Unknown) || pair.route.verdict == Verdict::Unknown {
        Works::Unknown
    } else {
        Works::Yes
    };
    let in_place = if effects.contains(&Effect::BlocksInPlace) {
        Works::No
    } else if works == Works::Yes
        && (effects.contains(&Effect::UnknownInPlace)
            // The policy exists, so the kernel has what the series needs. RDMA support is unknown.
            || host.picture.read(capture::OPTIONS).is_none())
    {
        Works::Unknown
    } else {
        works
    };
    PairReport {
        kind: pair.kind,
        provider: pair.provider.address.to_string(),
        client: pair.client.address.to_string(),
        verdict: pair.route.verdict,
        possible: pair.route.possible.clone(),
        distance: pair.route.distance,
        path: words::path(host, &pair.route, pair.provider, pair.client),
        works,
        in_place: (pair.kind == PairKind::GpuNic).then_some(in_place),
        parameter: redirecting(&pair.route).disable_acs_redir(),
        obstacles: ids.to_vec(),
    }
}

fn device_told(known: &Known, kind: DeviceKind, device: &Device) -> DeviceReport {
    let bar = match kind {
        DeviceKind::Gpu => device.memory_bar(known),
        _ => None,
    };
    let above = device.path.iter().rev().skip(1).rev();
    DeviceReport {
        address: device.address.to_string(),
        kind,
        ids: device.ids(),
        driver: device.driver.clone(),
        verbs: device.verbs.clone(),
        below: std::iter::once(device.root.clone())
            .chain(above.map(ToString::to_string))
            .collect(),
        bar: bar.map(|(_, bar)| bar.size()),
        bar_can_be: bar.and_then(|(number, _)| device.largest_bar(number)),
        memory: device.memory,
        iommu: device.iommu.clone(),
        dma_mask_bits: device.mask,
    }
}

fn host_told(host: &Host, known: &Known) -> HostReport {
    let picture = &host.picture;
    let unreadable = picture.folders.iter().flat_map(|(folder, entries)| {
        let names = entries.keys().map(move |name| format!("{folder}/{name}"));
        names.filter_map(|path| Some(format!("{path}: {}", picture.unreadable(&path)?)))
    });
    let cpu = match host.cpu.family {
        Some(family) => format!("{} family {family}", host.cpu.vendor),
        None => host.cpu.vendor.clone(),
    };
    HostReport {
        kernel: host.release().to_owned(),
        bridges_of_kernel: known.list.kernel.clone(),
        cpu,
        is_guest: host.cpu.is_virtual,
        iommus: picture.list(capture::IOMMUS).map(str::to_owned).collect(),
        series: series(host),
        unreadable: unreadable.collect(),
    }
}

fn series(host: &Host) -> Option<Series> {
    let pages = host.picture.list(capture::STATS).filter_map(|name| {
        let text = host.picture.read(&format!("{}/{name}", capture::STATS))?;
        Some(Count {
            result: name.to_owned(),
            pages: text.parse().ok()?,
            meaning: words::result(name),
        })
    });
    Some(Series {
        policy: host.policy()?.to_owned(),
        pages: pages.collect(),
    })
}
