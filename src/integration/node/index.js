'use strict'
const { Throttle } = require('./throttle')
const { ExpressStore, fastifyStore } = require('./stores')

module.exports = { Throttle, ExpressStore, fastifyStore }
