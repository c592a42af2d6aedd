//! What the results of a job depend on, for [`results::cache`].

use anyhow::Result;

use kernel::Built;
use machine::vm::Booter;
use plan::job::{Job, split, words};
use results::cache::Inputs;

/// Everything that its machine consists of. The programs that it runs must be built.
pub fn inputs(job: &Job<'_>, booter: &Booter<'_>) -> Result<Inputs> {
    let paths = booter.paths;
    let mut inputs = Inputs::new()?;
    inputs.text(&format!("{:?}", job.spec));
    inputs.text(&format!("{:?}", job.topology));
    booter.inputs(&mut inputs, job.topology.arch, job.spec.machine)?;
    let kernel = Built::at(paths, &job.kernel);
    inputs.path(&kernel.image())?;
    // Guest scripts load modules as well.
    if kernel.modules().is_dir() {
        inputs.path(&kernel.modules())?;
    }
    let programs = job.spec.from.as_deref().unwrap_or(&job.kernel);
    for program in job.spec.programs.iter().chain(&job.spec.scenarios) {
        let (folder, name) = split(words(program).0);
        inputs.path(&Built::at(paths, programs).selftests(folder).join(name))?;
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use host::paths::Paths;
    use host::ui::Ui;
    use plan::job::Spec;
    use plan::topology::{Kind, Topologies};
    use setup::Tools;

    /// All files that a job's results depend on.
    const FILES: [&str; 8] = [
        "qemu",
        "build/harness/debug/connectx",
        "build/harness/debug/pascal",
        "build/linux/include/linux/mlx5/driver.h",
        "harness/guest/lib.sh",
        "build/plain/arch/x86/boot/bzImage",
        "build/plain/ko/test_hmm.ko",
        "build/plain/selftests/mm/hmm-tests",
    ];

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(
            &file,
            format!("#!/bin/sh\n# {text}\necho 'vfio-user-pci options:'\n"),
        )
        .unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_change_of_anything_gives_another_key() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&repository).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let paths = Paths::within(root);
        for file in FILES {
            write(root, file, "one");
        }
        let key = |change: &dyn Fn(&mut Spec, &mut Topologies, &mut Tools)| {
            let mut spec = Spec {
                machine: Kind::Parallel,
                programs: vec!["mm/hmm-tests".to_owned()],
                ..Spec::default()
            };
            let mut tools = Tools {
                bindgen: "bindgen".into(),
                vng_dir: "vng-1".into(),
            };
            let mut topologies = topologies.clone();
            change(&mut spec, &mut topologies, &mut tools);
            let topology = topologies.get("switch").unwrap();
            let booter = Booter {
                paths: &paths,
                ui: &Ui::new(false),
                tools: &tools,
                qemu: Some(&root.join("qemu")),
                qemu_args: &[],
                machine: &topologies.machine,
            };
            let job = Job::alone("a/switch".to_owned(), "plain", topology, spec);
            inputs(&job, &booter).unwrap().key()
        };
        let as_it_is = || key(&|_, _, _| ());
        let first = as_it_is();
        assert_eq!(as_it_is(), first);
        for file in FILES {
            write(root, file, "two");
            assert_ne!(as_it_is(), first, "{file}");
            write(root, file, "one");
            assert_eq!(as_it_is(), first, "{file}");
        }
        assert_ne!(key(&|spec, _, _| spec.limit = 7), first);
        assert_ne!(key(&|_, all, _| all.machine.cpus += 1), first);
        assert_ne!(key(&|_, all, _| all.get_mut("switch").iommu = true), first);
        assert_ne!(key(&|_, _, tools| tools.vng_dir = "vng-2".into()), first);
        // A counting machine has no models.
        let counting = || key(&|spec, _, _| spec.machine = Kind::Counting);
        let (before, model) = (counting(), FILES[1]);
        write(root, model, "two");
        assert_eq!(counting(), before);
        write(root, "qemu", "two");
        assert_ne!(counting(), before);
        // Another topology does not count.
        assert_eq!(
            key(&|_, all, _| all.get_mut("blocked").iommu = true),
            as_it_is()
        );
    }
}
