'use strict'
module.exports = { ...require('./throttle'), ...require('./stores') }
