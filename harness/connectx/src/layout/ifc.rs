//! Reads `mlx5_ifc.h`, in which C structs describe bit layouts.
//!
//! A byte of `struct mlx5_ifc_x_bits` stands for a bit of the hardware's x, so
//! that the driver's macros get bit offsets from `offsetof` and widths from
//! `sizeof`. This module does the same: it lays out the members as C does and
//! reads bytes as bits.

use anyhow::{Result, ensure};

use super::Field;
use super::cstruct::{Declarations, View};

/// A structure of the hardware, in one of the two ways to declare it.
pub(super) enum Layout {
    /// By the bit.
    Bits(String),
    /// As a struct in memory.
    Memory(String),
}

impl Layout {
    /// Prefers the bit layout `mlx5_ifc_<name>_bits`. Names of structs in memory start
    /// with `mlx5_`, so they never match.
    pub fn new(declarations: &Declarations, name: &str) -> Self {
        let picture = format!("mlx5_ifc_{name}_bits");
        // A few bit layouts have this name.
        let short = format!("mlx5_ifc_{name}");
        if declarations.has(&picture) {
            Layout::Bits(picture)
        } else if declarations.has(&short) {
            Layout::Bits(short)
        } else if declarations.has(name) || name.starts_with("mlx5_") {
            Layout::Memory(name.to_string())
        } else {
            // The error should report the full name.
            Layout::Bits(picture)
        }
    }

    /// Size in bytes, without the flexible array at the end.
    pub fn size(&self, declarations: &Declarations) -> Result<usize> {
        let bits = match self {
            Layout::Bits(tag) => declarations.size(tag)? / 8,
            Layout::Memory(tag) => declarations.size(tag)?,
        };
        ensure!(bits.is_multiple_of(8), "{} is of {bits} bits", self.tag());
        Ok(bits / 8)
    }

    pub fn field(&self, declarations: &Declarations, path: &str) -> Result<Field> {
        Ok(match self {
            Layout::Bits(tag) => {
                let spot = declarations.find(tag, path, View::Bits)?;
                Field {
                    at: spot.at / 8,
                    bits: spot.bits / 8,
                }
            }
            Layout::Memory(tag) => {
                let spot = declarations.find(tag, path, View::Memory)?;
                Field {
                    at: spot.at,
                    bits: spot.bits,
                }
            }
        })
    }

    pub fn tag(&self) -> &str {
        match self {
            Layout::Bits(tag) | Layout::Memory(tag) => tag,
        }
    }
}
