//! Tables of numbered rows of numbers, as NumPy arrays.

use super::table::PyTable;
use cool_map::{Number, Rows};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

/// Adds rows of an array. `cool.map` has checked their numbers.
fn add<N: Number + Element>(
    rows: &mut Rows<N>,
    (keys, values): (PyReadonlyArray1<'_, i64>, PyReadonlyArray2<'_, N>),
) -> PyResult<()> {
    let numbers = values.as_slice()?.chunks_exact(rows.width());
    keys.as_slice()?.iter().zip(numbers).for_each(|(key, row)| rows.add(*key as usize, row));
    Ok(())
}

impl<N: Number + Element> PyTable for Rows<N> {
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut rows = Rows::new(object.getattr("count")?.extract()?, object.getattr("width")?.extract()?);
        add(&mut rows, (object.getattr("keys")?.extract()?, object.getattr("values")?.extract()?))?;
        Ok(rows)
    }

    fn add_result(&mut self, result: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, dtype) = (result.py(), numpy::dtype::<N>(result.py()));
        let checked = py.import("cool.map")?.getattr("_checked")?;
        add(self, checked.call1((result, self.keys(), self.width(), dtype))?.extract()?)
    }

    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (key, row) in self.iter() {
            keys.push(key as i64);
            values.extend_from_slice(row);
        }
        let values = PyArray1::from_vec(py, values).reshape([keys.len(), self.width()])?;
        let keys = PyArray1::from_vec(py, keys);
        let of_rows = (self.keys(), self.width(), numpy::dtype::<N>(py), keys, values);
        Ok(py.import("cool.map")?.call_method1("Rows", of_rows)?.unbind())
    }
}
